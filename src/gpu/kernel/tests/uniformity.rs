//! Barriers and subgroup operations are reached by all invocations together: checked in the text, and by tint, which
//! analyses the flow of control. naga does not, and neither does a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use super::variants::{ATTENTIONS, CLASSES, FORMS, WORKGROUP, attention, prefill, subgroup, variants};
use crate::formats::KvDtype;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionForm;
use crate::gpu::kernel::shape::KvShape;
use crate::testkit::{browser_wgsl, skip};

/// A tint other than the one in the path.
const TINT: &str = "TINT";

/// The command, if there is one and it answers.
fn tint() -> Option<String> {
    let command = std::env::var(TINT).unwrap_or_else(|_| "tint".to_owned());
    match Command::new(&command).arg("--help").output() {
        Ok(_) => Some(command),
        Err(error) => {
            skip(None, &format!("`{command}` cannot be run ({error}); set {TINT} to a tint command"));
            None
        }
    }
}

/// What tint says against a text.
fn judge(tint: &str, name: &str, text: &str) -> Result<(), String> {
    let file: PathBuf = std::env::temp_dir().join(format!("paged-{}-{name}.wgsl", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new(tint).args(["--format", "wgsl"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// With every option.
fn wide(form: AttentionForm, class: u32) -> Kernel {
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    attention(kv, true, 4, class, form, ATTENTIONS[1])
}

#[test]
fn tint_accepts_the_variants() {
    let Some(tint) = tint() else { return };
    let kernels = variants();
    // Steps that divide neither the flags nor the forms, so that the sample meets all of them.
    let (attention, others): (Vec<&Kernel>, Vec<&Kernel>) =
        kernels.iter().partition(|kernel| matches!(kernel, Kernel::PagedAttention { .. }));
    let (chunks, others): (Vec<&Kernel>, Vec<&Kernel>) =
        others.into_iter().partition(|kernel| matches!(kernel, Kernel::PagedPrefill { .. }));
    let mut sample: Vec<_> = attention.into_iter().step_by(2).chain(others.into_iter().step_by(5)).collect();
    sample.extend(chunks.into_iter().step_by(2));
    // The append kernel of every format, which are as many texts.
    sample.extend(kernels.iter().filter(|kernel| matches!(kernel, Kernel::KvAppend { kv, .. } if kv.head_dim == 300)));
    let met = |test: &dyn Fn(AttentionForm, u32) -> bool| {
        let met = |kernel: &&&Kernel| match ***kernel {
            Kernel::PagedAttention { form, class, .. } => test(form, class),
            _ => false,
        };
        sample.iter().filter(met).count()
    };
    for form in FORMS {
        assert!(met(&|own, _| own == form) > 5, "{form:?}");
    }
    for class in CLASSES {
        assert!(met(&|_, own| own == class) > 5, "class {class}");
    }
    // Words of 64 bits are an extension of naga's.
    sample.retain(|kernel| !kernel.features().contains(wgpu::Features::SHADER_INT64));
    for (at, kernel) in sample.into_iter().enumerate() {
        let text = browser_wgsl(&kernel.wgsl());
        if let Err(said) = judge(&tint, &format!("variant{at}"), &text) {
            panic!("{kernel}: {said}");
        }
    }
}

#[test]
fn tint_refuses_a_barrier_that_some_lanes_skip() {
    let Some(tint) = tint() else { return };
    let right = browser_wgsl(&wide(WORKGROUP, 2).wgsl());
    let wrong = right.replacen("        workgroupBarrier();", "        if (lane < 3u) { workgroupBarrier(); }", 1);
    assert_ne!(right, wrong, "nothing was planted");
    assert_eq!(judge(&tint, "barrier-right", &right), Ok(()));
    let said = judge(&tint, "barrier-wrong", &wrong).unwrap_err();
    assert!(said.contains("uniform"), "{said}");
}

#[test]
fn tint_refuses_a_shuffle_that_some_lanes_skip() {
    let Some(tint) = tint() else { return };
    let text = browser_wgsl(&wide(subgroup(8), 2).wgsl());
    // What tint cannot know is uniform is left out, so that it may look at all the rest.
    let right = text.replacen("diagnostic(off, subgroup_uniformity);\n", "", 1).replacen(
        "return subgroupAny(flag);",
        "return false;",
        1,
    );
    assert_eq!(judge(&tint, "shuffle-right", &right), Ok(()));
    let header = "    let header = step_header();\n    let item";
    let wrong = right.replacen(header, &format!("    if (lane == 3u) {{ return; }}\n{header}"), 1);
    assert_ne!(right, wrong, "nothing was planted");
    let said = judge(&tint, "shuffle-wrong", &wrong).unwrap_err();
    assert!(said.contains("uniform"), "{said}");
}

/// Function bodies of a text by name. Functions start at the first column, and so does their closing brace.
fn functions(text: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    for part in text.split("\nfn ").skip(1) {
        let name = &part[..part.find('(').unwrap()];
        // `fn f() {}` ends on its own line
        let first_line = part.lines().next().unwrap_or("");
        let end = if first_line.ends_with('}') { first_line.len() } else { part.find("\n}").unwrap() };
        found.insert(name, &part[..end]);
    }
    found
}

/// Functions that wait for other lanes, themselves or through what they call.
fn waiting<'a>(functions: &BTreeMap<&'a str, &'a str>) -> BTreeSet<&'a str> {
    let mut waiting: BTreeSet<&'a str> = BTreeSet::new();
    loop {
        let before = waiting.len();
        for (&name, body) in functions {
            let calls = |callee: &str| body.contains(&format!(" {callee}(")) || body.contains(&format!("({callee}("));
            if body.contains("workgroupBarrier()")
                || body.contains("subgroup")
                || waiting.iter().any(|callee| calls(callee))
            {
                waiting.insert(name);
            }
        }
        if waiting.len() == before {
            return waiting;
        }
    }
}

/// Exits whose condition is the same in all lanes, as tint confirms: it comes from the query tile alone, or from what
/// the lanes have agreed on.
const TOGETHER: [&str; 4] = [
    "if (served.end == 0u && work.tile.first_partial != NO_PARTIAL) { return; }",
    "if (first.x >= last.y && work.tile.first_partial != NO_PARTIAL) { return; }",
    "break if at >= served.end;",
    "break if pass_idx >= passes;",
];

/// The way in which a waiting function could leave some lanes behind.
fn early_exit(text: &str) -> Option<String> {
    let text = TOGETHER.iter().fold(text.to_owned(), |text, exit| text.replacen(exit, "", 1));
    let text: String = text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect();
    let functions = functions(&text);
    for name in waiting(&functions) {
        let body = functions[name];
        for (at, _) in
            body.match_indices("return").chain(body.match_indices("break")).chain(body.match_indices("continue"))
        {
            // At the end of the outermost block a return is no exit before anything.
            let rest = body[at..].split_once(';').map_or("", |(_, rest)| rest);
            if !rest.trim().is_empty() {
                return Some(format!("{name}: {}", body[at..].lines().next().unwrap_or("")));
            }
        }
    }
    None
}

// W11: an early return in front of a barrier passes naga and lavapipe.
#[test]
fn nothing_that_waits_for_other_lanes_is_left_early() {
    for (form, class) in FORMS.into_iter().flat_map(|form| CLASSES.map(|class| (form, class))) {
        let text = wide(form, class).wgsl();
        assert_waits(&text, &["attend", "serve", "main", "lanes_max", "lanes_sum_exp", "lanes_any", "key_groups_sum"]);
    }
    for (format, rows) in KvDtype::ALL.into_iter().zip([64, 32, 16].into_iter().cycle()) {
        assert_waits(&prefill(format, 128, 1, rows).wgsl(), &["attend", "serve", "main", "score_keys", "any_lane"]);
    }
}

/// That these functions are known to wait, and leave no lane behind.
#[track_caller]
fn assert_waits(text: &str, names: &[&str]) {
    assert_eq!(TOGETHER.iter().map(|exit| text.matches(exit).count()).sum::<usize>(), 3);
    let functions = functions(text);
    let waiting = waiting(&functions);
    for name in names {
        assert!(waiting.contains(name), "{name} is not known to wait: {waiting:?}");
    }
    assert_eq!(early_exit(text), None);
}

#[test]
fn an_early_exit_is_noticed() {
    let texts = [
        (wide(WORKGROUP, 2).wgsl(), "    load_queries(", TOGETHER[0]),
        (prefill(KvDtype::F16, 64, 1, 64).wgsl(), "    var passes", TOGETHER[1]),
    ];
    for (text, place, own) in texts {
        for exit in ["if (tile.key_end == 0u) { return; }", "for (;;) { break; }", "loop { continue; }", own] {
            let planted = text.replacen(place, &format!("    {exit}\n{place}"), 1);
            assert_ne!(text, planted, "nothing was planted");
            assert!(early_exit(&planted).is_some_and(|found| found.starts_with("attend")), "{exit}");
        }
    }
}

// N14: compilers may assume that there is no NaN, so a comparison of a value with itself tells nothing.
#[test]
fn no_shader_compares_a_value_with_itself() {
    let selfish = |text: &str| -> Option<String> {
        ["!=", "=="].iter().find_map(|operator| {
            text.match_indices(operator).find_map(|(at, _)| {
                let word = |c: char| !(c.is_alphanumeric() || "_.[]".contains(c));
                let left = text[..at].trim_end().rsplit(word).next().unwrap_or("");
                let right = text[at + 2..].trim_start().split(word).next().unwrap_or("");
                (!left.is_empty() && left == right).then(|| left.to_owned())
            })
        })
    };
    for kernel in variants() {
        assert_eq!(selfish(&kernel.wgsl()), None, "{kernel}");
    }
    assert_eq!(selfish("if (score[1] != score[1]) {"), Some("score[1]".to_owned()));
    assert_eq!(selfish("select(a == b, x.y == x.y, true)"), Some("x.y".to_owned()));
}
