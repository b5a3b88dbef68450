//! `tests/CASES.md` names tests that exist.

use std::collections::BTreeSet;
use std::path::Path;

/// The functions marked `#[test]` in a text.
fn tests_of(text: &str) -> impl Iterator<Item = String> {
    text.split("#[test]").skip(1).filter_map(|rest| {
        let name = rest.split_once("fn ")?.1;
        Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
    })
}

fn add_tests(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_tests(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests.extend(tests_of(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// What is wrong with the list: rows that name no test and give no reason, names of no test, ids that occur twice.
fn problems(list: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let (mut problems, mut ids) = (Vec::new(), BTreeSet::new());
    for row in list.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (id, named) = (cells[1], cells[3]);
        if !ids.insert(id) {
            problems.push(format!("{id} occurs twice"));
        }
        if named.starts_with("no test: ") {
            continue;
        }
        let names: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            problems.push(format!("{id} names no test"));
        }
        for name in names {
            let exists = if name.ends_with('_') {
                tests.iter().any(|test| test.starts_with(name))
            } else {
                tests.contains(name)
            };
            if !exists {
                problems.push(format!("{id}: there is no test `{name}`"));
            }
        }
    }
    problems
}

#[test]
fn every_fault_kind_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests", "cli/src", "cli/tests"] {
        add_tests(&root.join(folder), &mut tests);
    }
    let list = std::fs::read_to_string(root.join("tests/CASES.md")).unwrap();
    assert_eq!(problems(&list, &tests), Vec::<String>::new());
    assert!(list.lines().filter(|line| line.starts_with("| ")).count() > 86);
}

#[test]
fn a_row_without_a_test_is_noticed() {
    let tests = tests_of("#[test]\nfn good() {}\nfn bad() {}\n#[test]\n#[ignore]\nfn x01_also() {}").collect();
    assert_eq!(tests, ["good", "x01_also"].map(str::to_owned).into());
    let list = "| id | what | tests |\n|---|---|---|\n| A | a | `good`, `x01_` |\n| A | a | no test: why |\n";
    assert_eq!(problems(list, &tests), ["A occurs twice"]);
    for named in ["", "`bad`", "`x02_`", "good", "`good`, `worse`"] {
        assert_eq!(problems(&format!("| B | b | {named} |\n"), &tests).len(), 1, "{named}");
    }
}
