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

const fn form(columns: [&'static str; 3], ids: Option<&'static str>, clock: Clock) -> Form {
    let [time, prompt, output] = columns;
    Form { time, prompt, output, ids, clock }
}

const TABLES: [Form; 3] = [
    form(["arrival_s", "prompt_tokens", "output_tokens"], Some("hash_ids"), Clock::Named(TimeUnit::S)),
    form(["TIMESTAMP", "ContextTokens", "GeneratedTokens"], None, Clock::Calendar),
    form(["Timestamp", "Request tokens", "Response tokens"], None, Clock::Usually(TimeUnit::S)),
];
pub(super) const MOONCAKE: Form =
    form(["timestamp", "input_length", "output_length"], Some("hash_ids"), Clock::Usually(TimeUnit::Ms));
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
    let count = |form: &&Form| [form.time, form.prompt, form.output].iter().filter(|name| at(name).is_some()).count();
    // The first of several that fit as well.
    let Some(form) = TABLES.iter().rev().max_by_key(count).filter(|form| count(form) > 0) else {
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
