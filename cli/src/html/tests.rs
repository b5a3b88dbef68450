use super::*;
use crate::html::plot::{Axis, Series};
use crate::report::{Head, Table};

mod browser;

fn page() -> Page {
    let plot = Plot {
        id: "one".into(),
        title: "One".into(),
        x: Axis::linear("x"),
        y: Axis::linear("y"),
        series: vec![Series { name: "line".into(), points: vec![(0.0, 1.0), (1.0, 2.0)] }],
        levels: Vec::new(),
    };
    let mut table = Table::new("two", "Two", &["what", "number"], 1);
    table.rows.push(vec!["<b>".into(), "1".into()]);
    Page {
        title: "A & B".into(),
        notices: vec!["careful".into()],
        head: Head::new("bench", Some("paged-attention bench --trace 'a<b'".into()), Some(7)),
        facts: vec![("adapter", "card".into())],
        summary: vec!["met".into()],
        sections: vec![Section {
            heading: "Section".into(),
            text: String::new(),
            plots: vec![plot],
            tables: vec![table],
        }],
    }
}

#[test]
fn a_page_is_one_document_with_everything_escaped() {
    let html = page().to_html().unwrap();
    assert!(html.trim_start().starts_with("<!DOCTYPE html>"), "{html}");
    for part in [
        "<html lang=\"en\">",
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\"",
        "prefers-color-scheme: dark",
        "<title>A &#38; B</title>",
        "<svg id=\"one\"",
        "<table id=\"one-data\">",
        "<table id=\"two\">",
        "<caption id=\"two-caption\">Two</caption>",
        "<th scope=\"col\" class=\"number\">number</th>",
        "<th scope=\"row\" class=\"word\">&#60;b&#62;</th>",
        "a&#60;b",
        "careful",
        "<dt>adapter</dt><dd>card</dd>",
        "<dt>seed</dt><dd>7</dd>",
        "<p class=\"summary\">met</p>",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    for outside in ["http", "src=", "<script", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}: {html}");
    }
    assert_eq!(page().to_html().unwrap(), html, "the same bytes");
}

#[test]
fn an_id_occurs_once() {
    let mut twice = page();
    twice.sections.push(twice.sections[0].clone());
    assert!(matches!(twice.to_html(), Err(PageError::DuplicateId { id }) if id == "one"));
}

#[test]
fn plots_are_files_by_their_ids() {
    let svgs = page().to_svgs().unwrap();
    assert_eq!(svgs.len(), 1);
    assert!(svgs[0].0 == "one" && svgs[0].1.starts_with("<svg id=\"one\""));
}

#[test]
fn text_has_the_facts_the_tables_and_the_summary_but_no_plots() {
    let text = page().to_text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..4], ["adapter: card", "careful", "", "Two"]);
    assert_eq!(lines[4..], ["| what | number |", "|------|--------|", "| <b>  |      1 |", "", "met"]);
}
