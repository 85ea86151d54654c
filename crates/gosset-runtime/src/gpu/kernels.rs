//! Which models devices have kernels for.

use crate::config::ModelConfig;
use crate::error::RuntimeError;
use crate::models::Gate;

/// Fails for a model that needs what there are no kernels for.
///
/// # Errors
/// [`RuntimeError::DeviceModel`] with what is missing.
pub(super) fn check_kernels(config: &ModelConfig) -> Result<(), RuntimeError> {
    let architecture = config.architecture;
    let reason = if architecture.gemma_norms || architecture.gate != Gate::Silu {
        "there are no kernels for its norms and its gate".to_owned()
    } else if let Some(window) = config.sliding_window {
        format!("there are no kernels for its sliding window of {window} positions")
    } else {
        return Ok(());
    };
    Err(RuntimeError::DeviceModel { class: architecture.class, reason })
}

#[cfg(test)]
mod tests {
    use gosset_quantize::ModelSource;
    use serde_json::Value;

    use super::*;
    use crate::tests::{MemorySource, gemma3_like, mistral_like, qwen3_like};

    #[test]
    fn windows_and_gemma_are_refused_with_the_reason_and_windows_that_are_off_are_not() {
        let check = |source: &MemorySource| {
            check_kernels(&ModelConfig::from_json(source.blob("config.json").unwrap()).unwrap())
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            check(&gemma3_like()).unwrap_err(),
            "Gemma3ForCausalLM runs on the CPU alone: there are no kernels for its norms and its gate; choose the device cpu"
        );
        let mut mistral = mistral_like();
        assert!(check(&mistral).unwrap_err().contains("sliding window of 16 positions"));
        mistral.set_config("sliding_window", Value::Null);
        assert_eq!(check(&mistral), Ok(()));
        assert_eq!(check(&qwen3_like()), Ok(()));
    }
}
