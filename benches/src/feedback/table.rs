//! The table for people.

use std::fmt::Write as _;

use super::Report;

/// One block per matrix, one line per shape and rate.
pub(super) fn render(report: &Report) -> String {
    let (seen, unseen) = (&report.calibration, &report.held_out);
    let mut text = format!(
        "{}: rounded with {} tokens of {}, errors of {} tokens of {}; damping {}\n",
        report.model, seen.tokens, seen.text, unseen.tokens, unseen.text, report.damping
    );
    let mut matrix = "";
    for row in &report.rows {
        if row.matrix != matrix {
            matrix = &row.matrix;
            let _ = writeln!(text, "\n{matrix}: {} x {}", row.outputs, row.inputs);
            let _ = writeln!(text, "{:32}  payload   all-in  calibration   held out  seconds", "shape");
        }
        let label = format!("{}@{}{}", row.codec, row.target_bps, if row.coded { "" } else { " (ideal code)" });
        let _ = writeln!(
            text,
            "{label:32}  {:7.4}  {:7.4}  {:11.5}  {:9.5}  {:7.1}",
            row.payload_bps, row.all_in_bps, row.calibration_error, row.held_out_error, row.seconds
        );
    }
    text
}
