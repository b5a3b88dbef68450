//! Kernels are compiled without a bound on their loops, which is sound only if each ends, whatever the buffers hold.

use super::variants::variants;
use crate::gpu::kernel::Kernel;

/// Loops that count in another way, and why they end.
const OTHERS: [(&str, &str); 3] = [
    ("while (high - low > 1u) {", "low or high moves to a value strictly between them"),
    ("break if at >= served.end;", "at grows by SUBGROUPS * KEY_TILE; served.end is no key beyond 2^31"),
    ("break if pass_idx >= passes;", "pass_idx grows by one; passes is set in the first pass alone"),
];

/// The first loop that is not known to end.
fn endless(text: &str) -> Option<&str> {
    let heads = ["for", "while", "loop"].into_iter().flat_map(|word| text.match_indices(word));
    let is_word = |at: usize, word: &str| {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
    };
    let is_code = |at: usize| !text[text[..at].rfind('\n').map_or(0, |end| end + 1)..at].contains("//");
    heads.filter(|(at, word)| is_word(*at, word) && is_code(*at)).find_map(|(at, _)| {
        let line = text[at..].lines().next().unwrap_or("");
        let body = body(&text[at..]);
        let ends = match line.strip_prefix("for (var ") {
            Some(head) => counts(head, body),
            None if line == "loop {" => OTHERS.iter().any(|(exit, _)| body.contains(exit)),
            None => OTHERS.iter().any(|(head, _)| *head == line),
        };
        (!ends).then_some(line)
    })
}

/// `i = …; i < n; i++) {`, or with a constant step, or `i > 0u; i /= 2u`; the body changes neither i nor n.
fn counts(head: &str, body: &str) -> bool {
    let mut parts = head.split_once(") {").map_or("", |(head, _)| head).split("; ");
    let (Some(init), Some(condition), Some(step), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((i, _)) = init.split_once(" = ") else { return false };
    let halves = condition == format!("{i} > 0u") && step == format!("{i} /= 2u");
    let Some(bound) = condition.strip_prefix(&format!("{i} < ")).or(halves.then_some("0u")) else { return false };
    let is_constant =
        |text: &str| text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || "_ *".contains(c));
    let grows = |text: &str| is_constant(text) && !text.split(' ').any(|factor| factor.trim_end_matches('u') == "0");
    let steps = step == format!("{i}++") || step.strip_prefix(&format!("{i} += ")).is_some_and(grows);
    (steps || halves) && !changes(body, i) && !changes(body, bound)
}

/// Whether a text assigns to a variable.
fn changes(text: &str, name: &str) -> bool {
    let assigns = |after: &str| {
        let after = after.trim_start();
        let operators = ["", "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
        let is_assignment = |op: &str| after.strip_prefix(op).is_some_and(|rest| rest.starts_with('='));
        let compares = ["==", "<=", ">="].iter().any(|op| after.starts_with(op));
        after.starts_with("++") || after.starts_with("--") || !compares && operators.into_iter().any(is_assignment)
    };
    let is_whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
    let is_lent = |at: usize| text[..at].ends_with('&') && !text[..at].ends_with("&&");
    text.match_indices(name).any(|(at, _)| is_whole(at) && (is_lent(at) || assigns(&text[at + name.len()..])))
}

/// What stands between the first brace and the one that closes it.
fn body(text: &str) -> &str {
    let begin = text.find('{').map_or(text.len(), |at| at + 1);
    let mut depth = 1;
    let end = text[begin..].find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    &text[begin..end.map_or(text.len(), |end| begin + end)]
}

#[test]
fn every_loop_of_the_kernels_ends() {
    let mut loops = 0;
    for kernel in variants() {
        let text = kernel.wgsl();
        assert_eq!(endless(&text), None, "{kernel}");
        loops += text.matches("for (").count();
    }
    assert!(loops > 1000, "{loops} loops were looked at");
}

#[test]
fn a_loop_that_may_not_end_is_noticed() {
    for wrong in [
        "for (;;) { }",
        "loop { x += 1u; }",
        "while (x < 3u) { }",
        "while x < 3u { }",
        "while(true) { }",
        "for(;;) { }",
        "loop\n{ }",
        "for (var i = 0u; i < n; i += 0) { }",
        "for (var i = 0u; i < n; i++) { advance(&i); }",
        "for (var i = 0u; i < n; i += step) { }",
        "for (var i = 0u; i < n; i++) { i = 0u; }",
        "for (var i = 0u; i < n; i++) { if (x) { i -= 1u; } }",
        "for (var i = 0u; i < n; i++) { n += 1u; }",
        "for (var i = 0u; i != n; i++) { }",
        "for (var i = 0u; i < n; i++) { for (var j = 0u; j < 2u; i++) { } }",
    ] {
        assert!(endless(wrong).is_some(), "{wrong}");
    }
    let right = "for (var i = lane; i < N; i += LANES) { n[i] = 1u; x = i == n; }\nfor (var h = 8u; h > 0u; h /= 2u) { x += h; }";
    assert_eq!(endless(right), None);
}

#[test]
fn every_marked_loop_of_an_unrolled_form_is_expanded() {
    let (mut expanded, mut left) = (0, 0);
    for kernel in variants() {
        let marks = kernel.wgsl().matches("{ // unroll\n").count();
        match kernel {
            Kernel::PagedAttention { form, .. } if form.unrolled => {
                assert_eq!(marks, 0, "{kernel}");
                // Rounds are counted as if none of these were left.
                assert!(!form.whole || !kernel.wgsl().contains("{ // once if"), "{kernel}");
                expanded += 1;
            }
            _ => left += marks,
        }
    }
    assert!(expanded > 0 && left > 0, "{expanded} kernels were looked at; {left} loops are left in others");
}
