//! The numbers of reports that have no samples: every number in the JSON, by the names on the way to it.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Band, Better, Measure};
use crate::blocks::BlockSizesReport;
use crate::common::Report;

const SETTINGS: [&str; 6] = ["adapter", "cache", "clock", "log", "model", "recommendation"];
const LEFT_OUT: [&str; 4] = ["schema", "kind", "timeline", "published"];
/// Names of numbers that tell how sure the one beside them is.
const NOISE: [&str; 3] = ["low_us", "high_us", "noise"];
/// A list's elements are named by one of these fields, or else by their number.
const NAMES: [&str; 3] = ["name", "model", "block_size"];

const LESS: [&str; 9] = [
    "evictions",
    "fragmentation",
    "internal_fragmentation",
    "preemptions",
    "recomputed_tokens",
    "refused",
    "unfinished",
    "waiting",
    "wrong_rows",
];
const MORE: [&str; 6] = ["capacity_tokens", "concurrency", "finished", "hit_share", "hit_tokens", "utilisation"];

pub(super) fn noise(report: &Value) -> String {
    let is_measured =
        report.get("kind").is_some_and(|kind| kind == BlockSizesReport::KIND) && !report["adapter"].is_null();
    match model_error(report) {
        0.0 if is_measured => {
            "medians of decode times differ if their 95 % intervals do not overlap, and quotients if \
                               they are further apart than their quartiles; all other numbers are exact"
                .to_owned()
        }
        0.0 => "there is none: the same input gives the same numbers, and any difference is exact".to_owned(),
        error => format!(
            "times come from a calibrated cost model that is off by {:.1} % on the average: they differ if they do even \
             where both are off by that, towards each other; all other numbers are exact",
            error * 100.0
        ),
    }
}

fn model_error(report: &Value) -> f64 {
    report.pointer("/clock/fit_error_mean").and_then(Value::as_f64).filter(|error| *error > 0.0).unwrap_or(0.0)
}

pub(super) fn settings(report: &Map<String, Value>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, value) in report.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())) {
        match value {
            Value::Object(_) if SETTINGS.contains(&name.as_str()) => collect(value, name, &mut found),
            Value::Object(_) | Value::Array(_) | Value::Null => {}
            _ => collect(value, name, &mut found),
        }
    }
    found.into_iter().map(|(name, value)| (name, value.as_str().map_or(value.to_string(), str::to_owned))).collect()
}

pub(super) fn measures(report: &Value) -> Vec<Measure> {
    let mut found = Vec::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        let is_result = matches!(value, Value::Object(_) | Value::Array(_)) && !SETTINGS.contains(&name.as_str());
        if is_result && !LEFT_OUT.contains(&name.as_str()) {
            collect(value, name, &mut found);
        }
    }
    let error = model_error(report);
    let clock = match report.pointer("/clock/kind").and_then(Value::as_str) {
        Some("step") => "equal steps",
        Some(_) => "a cost model",
        None => "",
    };
    let numbers: Vec<_> = found.into_iter().filter_map(|(case, value)| Some((case, value.as_f64()?))).collect();
    let by_name: HashMap<&str, f64> = numbers.iter().map(|(case, value)| (case.as_str(), *value)).collect();
    let results = numbers.iter().filter(|(case, _)| !NOISE.iter().any(|name| case.ends_with(&format!(".{name}"))));
    results
        .map(|(case, value)| {
            let (value, better) = (*value, better(case));
            let timed = matches!(better, Better::Faster | Better::Rate);
            let noise = if timed { value.abs() * error } else { 0.0 };
            let modelled = Band { value, low: value - noise, high: value + noise };
            let band = measured(case, value, &by_name).unwrap_or(modelled);
            Measure { case: case.clone(), unit: "", better, outcome: Ok(band), clock: if timed { clock } else { "" } }
        })
        .collect()
}

fn measured(case: &str, value: f64, numbers: &HashMap<&str, f64>) -> Option<Band> {
    let (parent, name) = case.rsplit_once('.')?;
    let beside = |name: &str| numbers.get(format!("{parent}.{name}").as_str()).copied();
    match name {
        "median_us" => Some(Band { value, low: beside("low_us")?, high: beside("high_us")? }),
        "relative" => beside("noise").map(|noise| Band { value, low: value - noise, high: value + noise }),
        _ => None,
    }
}

fn collect(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())) {
                collect(value, &format!("{path}.{name}"), found);
            }
        }
        Value::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                let name = NAMES.iter().find_map(|name| match value.get(name)? {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(format!("{name} {number}")),
                    _ => None,
                });
                collect(value, &format!("{path}[{}]", name.unwrap_or_else(|| i.to_string())), found);
            }
        }
        Value::Null => {}
        leaf => found.push((path.to_owned(), leaf.clone())),
    }
}

/// Told by the names on the way: `paged.time_to_first_token_s.p95` is a time.
fn better(path: &str) -> Better {
    let ends = |end: &str| path.split('.').any(|name| name.ends_with(end));
    let has = |names: &[&str]| path.split('.').any(|name| names.contains(&name));
    if ends("_per_s") {
        Better::Rate
    } else if ends("_s") || ends("_us") {
        Better::Faster
    } else if has(&LESS) {
        Better::Less
    } else if has(&MORE) {
        Better::More
    } else {
        Better::Neither
    }
}
