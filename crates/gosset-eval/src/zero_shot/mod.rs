//! Zero-shot accuracy: the option of a question that a model finds most likely.

mod encode;
mod log;
mod metrics;
mod requests;
mod score;

pub use encode::{Encode, EncodeRules, EncodedOption, encode_option};
pub use log::{TaskLog, read_task_log, write_task_log};
pub use metrics::{Accuracy, OptionScore, QuestionScore, TaskResult};
pub use requests::{OptionText, Question, read_questions};
pub use score::{TokenTree, TreeBranch, TreeToken, score_questions};
