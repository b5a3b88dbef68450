//! The forms of logs: what their columns are called, and how they tell the time.

use super::{Clock, Problem, TimeUnit};
use crate::common::clip;

pub(super) struct Form {
    pub(super) time: &'static str,
    pub(super) prompt: &'static str,
    pub(super) output: &'static str,
    pub(super) ids: Option<&'static str>,
    pub(super) clock: Clock,
}

const TABLES: [Form; 3] = [
    Form {
        time: "arrival_s",
        prompt: "prompt_tokens",
        output: "output_tokens",
        ids: Some("hash_ids"),
        clock: Clock::Named(TimeUnit::S),
    },
    Form { time: "TIMESTAMP", prompt: "ContextTokens", output: "GeneratedTokens", ids: None, clock: Clock::Calendar },
    Form {
        time: "Timestamp",
        prompt: "Request tokens",
        output: "Response tokens",
        ids: None,
        clock: Clock::Usually(TimeUnit::S),
    },
];

pub(super) const MOONCAKE: Form = Form {
    time: "timestamp",
    prompt: "input_length",
    output: "output_length",
    ids: Some("hash_ids"),
    clock: Clock::Usually(TimeUnit::Ms),
};
pub(super) const MOONCAKE_TOKENS_PER_ID: u32 = 512;
/// A field of the Qwen-Bailian traces, which are otherwise of the form of Mooncake, but in seconds
pub(super) const BAILIAN: &str = "chat_id";
pub(super) const BAILIAN_TOKENS_PER_ID: u32 = 16;

#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) time: usize,
    pub(super) prompt: usize,
    pub(super) output: usize,
    pub(super) ids: Option<usize>,
}

pub(super) fn find(header: &[&str]) -> Result<(&'static Form, Columns), Problem> {
    let at = |name: &str| header.iter().position(|column| *column == name);
    let mut best: (usize, Option<&Form>) = (0, None);
    for form in &TABLES {
        let count = [form.time, form.prompt, form.output].into_iter().filter(|name| at(name).is_some()).count();
        if count > best.0 {
            best = (count, Some(form));
        }
    }
    let Some(form) = best.1 else {
        return Err(Problem::UnknownHeader { header: clip(&header.join(",")) });
    };
    let column = |name| at(name).ok_or(Problem::MissingColumn(name));
    let columns = Columns {
        time: column(form.time)?,
        prompt: column(form.prompt)?,
        output: column(form.output)?,
        ids: form.ids.and_then(at),
    };
    Ok((form, columns))
}
