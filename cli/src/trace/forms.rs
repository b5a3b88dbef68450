//! The forms of logs: what their columns are called, and how they tell the time.

use super::TraceError;
use super::rows::clip;

/// One form.
pub(super) struct Form {
    pub(super) time: &'static str,
    pub(super) prompt: &'static str,
    pub(super) output: &'static str,
    /// Not every log of the form has them.
    pub(super) ids: Option<&'static str>,
    pub(super) clock: Clock,
}

#[derive(Clone, Copy)]
pub(super) enum Clock {
    Seconds,
    Milliseconds,
    /// Date and time of day; the first request is at 0.
    Calendar,
}

const TABLES: [Form; 3] = [
    Form {
        time: "arrival_s",
        prompt: "prompt_tokens",
        output: "output_tokens",
        ids: Some("hash_ids"),
        clock: Clock::Seconds,
    },
    Form { time: "TIMESTAMP", prompt: "ContextTokens", output: "GeneratedTokens", ids: None, clock: Clock::Calendar },
    Form { time: "Timestamp", prompt: "Request tokens", output: "Response tokens", ids: None, clock: Clock::Seconds },
];

/// The one form that is JSON.
pub(super) const MOONCAKE: Form = Form {
    time: "timestamp",
    prompt: "input_length",
    output: "output_length",
    ids: Some("hash_ids"),
    clock: Clock::Milliseconds,
};

/// Tokens behind one id of [`MOONCAKE`], as it is published.
pub(super) const MOONCAKE_TOKENS_PER_ID: u32 = 512;

/// Where a table has its columns.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) time: usize,
    pub(super) prompt: usize,
    pub(super) output: usize,
    pub(super) ids: Option<usize>,
}

/// The form whose columns are in the header, by the one that has most of them.
pub(super) fn find(header: &[&str], file: &str, line: u64) -> Result<(&'static Form, Columns), TraceError> {
    let at = |name: &str| header.iter().position(|column| *column == name);
    let mut best: (usize, Option<&Form>) = (0, None);
    for form in &TABLES {
        let count = [form.time, form.prompt, form.output].into_iter().filter(|name| at(name).is_some()).count();
        if count > best.0 {
            best = (count, Some(form));
        }
    }
    let Some(form) = best.1 else {
        return Err(TraceError::UnknownHeader { file: file.to_owned(), line, header: clip(&header.join(",")) });
    };
    let column = |name| at(name).ok_or_else(|| TraceError::MissingColumn { file: file.to_owned(), line, column: name });
    let columns = Columns {
        time: column(form.time)?,
        prompt: column(form.prompt)?,
        output: column(form.output)?,
        ids: form.ids.and_then(at),
    };
    Ok((form, columns))
}
