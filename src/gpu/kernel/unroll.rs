//! Unrolling of the WGSL loops that ask for it.
//!
//! Some drivers keep a private array in registers only while every index into it is a constant; WGSL has no way to ask
//! for that. A loop whose opening line ends in the comment `unroll` is therefore written out: its body is repeated, each
//! time with the counter as a `const`. Unexpanded, the text is the
//! same program, in plain WGSL.

use crate::gpu::kernel::shape::Constants;

const MARK: &str = "{ // unroll";

/// A marked loop that cannot be expanded: a fault in our shaders, never in a caller's input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnrollError {
    /// The head is not `for (var i = Au; i < COUNT; i++)`.
    #[error("cannot unroll `{head}`; write `for (var i = 0u; i < COUNT; i++)`")]
    Head {
        /// The text before the mark.
        head: String,
    },
    /// The bound is neither a number nor one of the constants of the shader.
    #[error("`{bound}`, the bound of an unrolled loop, is no constant known to the host")]
    Bound {
        /// The bound as written.
        bound: String,
    },
    /// No closing brace.
    #[error("the unrolled loop `{head}` has no end")]
    NoEnd {
        /// The text before the mark.
        head: String,
    },
}

/// Expands the marked loops of `source` that take at most `longest` rounds; bounds are numbers, names among `constants`, or
/// one of these shifted by the counter of an outer loop: `(N >> i)`.
///
/// Loops that are marked `once if A == B` are no loops where these constants are equal.
pub(super) fn unroll(source: &str, constants: &Constants, longest: u32) -> Result<String, UnrollError> {
    written_out(&without_single_rounds(source, constants), &Scope { constants, outer: None }, longest)
}

fn without_single_rounds(source: &str, constants: &Constants) -> String {
    let single_round = |line: &str| {
        let (head, condition) = line.split_once("{ // once if ")?;
        let (a, b) = condition.split_once(" == ")?;
        let (init, _) = head.trim_start().strip_prefix("for (var ")?.split_once(';')?;
        let (a, b) = (constants.number(a)?, constants.number(b)?);
        (a == b).then(|| format!("{{ let {init};\n"))
    };
    source.split_inclusive('\n').map(|line| single_round(line.trim_end()).unwrap_or_else(|| line.to_owned())).collect()
}

/// What has a value where a loop stands.
struct Scope<'a> {
    constants: &'a Constants,
    /// The counter of the loop around it, and its scope.
    outer: Option<(&'a str, u32, &'a Scope<'a>)>,
}

impl Scope<'_> {
    fn value(&self, text: &str) -> Option<u32> {
        if let Some((number, shift)) =
            text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')?.split_once(" >> "))
        {
            return self.value(number)?.checked_shr(self.value(shift)?);
        }
        let of_outer = || match self.outer {
            Some((counter, value, _)) if counter == text => Some(value),
            Some((.., outer)) => outer.value(text),
            None => self.constants.number(text),
        };
        number(text).or_else(of_outer)
    }
}

fn written_out(source: &str, scope: &Scope<'_>, longest: u32) -> Result<String, UnrollError> {
    let mut out = String::with_capacity(2 * source.len());
    let mut rest = source;
    while let Some(mark) = rest.find(MARK) {
        let line_start = rest[..mark].rfind('\n').map_or(0, |at| at + 1);
        let line_end = mark + rest[mark..].find('\n').unwrap_or(rest.len() - mark);
        let head = rest[line_start..mark].trim();
        let range = Range::parse(head, scope)?;
        if range.len() > longest {
            // The marks inside are still honoured.
            out.push_str(&rest[..line_end]);
            rest = &rest[line_end..];
            continue;
        }
        let body_len = body_len(&rest[line_end..]).ok_or_else(|| UnrollError::NoEnd { head: head.to_owned() })?;
        // Indented and explained in every copy, the text of a wide tile would be half spaces and comments.
        let lines = rest[line_end..line_end + body_len].lines().map(str::trim_start);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        let body: String = lines.flat_map(|line| [line, "\n "]).collect();
        out.push_str(&rest[..line_start]);
        for i in range.start..range.end {
            let inner = Scope { constants: scope.constants, outer: Some((range.counter, i, scope)) };
            let body = written_out(&body, &inner, longest)?;
            out.push_str(&format!("{{ const {} = {i}u;{body}}}\n", range.counter));
        }
        rest = &rest[line_end + body_len + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The head of a loop.
struct Range<'a> {
    counter: &'a str,
    start: u32,
    end: u32,
}

impl<'a> Range<'a> {
    fn parse(head: &'a str, scope: &Scope<'_>) -> Result<Self, UnrollError> {
        let wrong = || UnrollError::Head { head: head.to_owned() };
        let (init, rest) = head.strip_prefix("for (var ").and_then(|rest| rest.split_once("; ")).ok_or_else(wrong)?;
        let (counter, start) = init.split_once(" = ").ok_or_else(wrong)?;
        let (condition, step) = rest.split_once("; ").ok_or_else(wrong)?;
        let bound = condition.strip_prefix(counter).and_then(|rest| rest.strip_prefix(" < ")).ok_or_else(wrong)?;
        if step != format!("{counter}++)") {
            return Err(wrong());
        }
        let start = number(start).ok_or_else(wrong)?;
        let end = scope.value(bound).ok_or_else(|| UnrollError::Bound { bound: bound.to_owned() })?;
        Ok(Self { counter, start, end })
    }

    fn len(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

fn number(text: &str) -> Option<u32> {
    text.strip_suffix('u')?.parse().ok()
}

/// Bytes up to the brace that closes a block already open.
fn body_len(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(source: &str) -> Result<String, UnrollError> {
        let mut constants = Constants::default();
        constants.set("N", 2);
        unroll(source, &constants, u32::MAX)
    }

    #[test]
    fn a_marked_loop_is_repeated_with_its_counter_as_a_constant() {
        let text = "a\nfor (var i = 0u; i < N; i++) { // unroll\n  f(i);\n}\nb\n";
        assert_eq!(expand(text).unwrap(), "a\n{ const i = 0u;f(i);\n }\n{ const i = 1u;f(i);\n }\n\nb\n");
    }

    #[test]
    fn inner_loops_are_expanded_in_every_copy() {
        let text = "for (var i = 0u; i < 3u; i++) { // unroll\nfor (var j = 1u; j < N; j++) { // unroll\nx\n}\n}";
        assert_eq!(expand(text).unwrap().matches('x').count(), 3);
    }

    #[test]
    fn a_bound_may_be_shifted_by_the_counter_of_an_outer_loop() {
        let text =
            "for (var i = 0u; i < 3u; i++) { // unroll\nfor (var j = 0u; j < (4u >> i); j++) { // unroll\nx\n}\n}";
        assert_eq!(expand(text).unwrap().matches('x').count(), 4 + 2 + 1);
        let unknown = text.replace(">> i", ">> k");
        assert_eq!(expand(&unknown), Err(UnrollError::Bound { bound: "(4u >> k)".to_owned() }));
    }

    #[test]
    fn a_loop_without_rounds_disappears() {
        assert!(!expand("for (var i = 2u; i < N; i++) { // unroll\nx\n}").unwrap().contains('x'));
    }

    #[test]
    fn loops_of_more_rounds_than_asked_for_stay() {
        let text = "for (var i = 0u; i < 2u; i++) { // unroll\nfor (var j = 0u; j < 1u; j++) { // unroll\nx[j]\n}\n}";
        let text = unroll(text, &Constants::default(), 1).unwrap();
        assert!(text.contains("i < 2u") && text.contains("const j = 0u;"), "{text}");
    }

    #[test]
    fn a_loop_of_one_round_by_its_constants_is_none() {
        let mut constants = Constants::default();
        constants.set("A", 4);
        constants.set("B", 4);
        let text = "for (var i = g * A; i < n; i += B) { // once if A == B\n  f(i);\n}\n";
        assert_eq!(unroll(text, &constants, 1).unwrap(), "{ let i = g * A;\n  f(i);\n}\n");
        let mut others = Constants::default();
        others.set("A", 4);
        others.set("B", 2);
        assert_eq!(unroll(text, &others, 1).unwrap(), text);
    }

    #[test]
    fn unmarked_text_is_left_alone() {
        let text = "for (var i = 0u; i < n; i++) { f(i); }";
        assert_eq!(expand(text).unwrap(), text);
    }

    #[test]
    fn what_cannot_be_expanded_is_an_error_that_quotes_it() {
        let head = |text: &str| expand(text).unwrap_err().to_string();
        assert!(head("for (var i = 0u; i < M; i++) { // unroll\n}").contains("`M`"));
        assert!(head("while (x) { // unroll\n}").contains("while (x)"));
        assert!(head("for (var i = 0u; i < N; i += 2u) { // unroll\n}").contains("i += 2u"));
        assert!(head("for (var i = 0u; i < N; i++) { // unroll\n x").contains("no end"));
    }
}
