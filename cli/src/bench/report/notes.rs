//! What a reader of the rates must know: whether other programs took cores, what limits reading, and which case lies above its
//! ceiling.

use super::page::{lengths, rate};
use super::{CaseResult, Ceilings, Report};
use crate::report::fmt::{number, percent};

/// Where memory is the limit, reading is no slower than this share of a copy, whose bytes count twice.
const LEAST_OF_COPY: f64 = 0.5;

/// An idle machine is below: the threads of a driver wait a little for one another.
const MOST_WAITING: f64 = 0.15;

pub(super) fn notes(report: &Report) -> Vec<String> {
    let notes = [cores(report), loads(&report.ceilings), above(&report.results)];
    notes.into_iter().flatten().collect()
}

fn cores(report: &Report) -> Option<String> {
    let share = report.waiting_share.filter(|share| *share > MOST_WAITING)?;
    Some(format!(
        "another program took cores away: in timed runs, threads that had work waited for a core for {} of the time; an idle \
         machine is faster",
        percent(share)
    ))
}

fn loads(ceilings: &Ceilings) -> Option<String> {
    let (read, copy) = ceilings.read_gb_s.zip(ceilings.copy_gb_s)?;
    let host = ceilings.host_read_gb_s.map(|host| format!(", the host itself reads {} GB/s", number(host)));
    (read < LEAST_OF_COPY * copy).then(|| {
        format!(
            "the driver's loads limit reading, not the memory: kernels read {} GB/s at best, a copy moves {} GB/s{}",
            number(read),
            number(copy),
            host.unwrap_or_default()
        )
    })
}

fn above(results: &[CaseResult]) -> Option<String> {
    let mut above: Vec<(f64, &CaseResult)> =
        results.iter().filter_map(|result| Some((rate(result).1?, result))).filter(|(share, _)| *share > 1.0).collect();
    above.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (share, CaseResult { op, model, kv_dtype, mode, .. }) = above.first()?;
    let more = if above.len() > 1 { format!(", and {} more,", above.len() - 1) } else { String::new() };
    let verb = if above.len() > 1 { "lie" } else { "lies" };
    Some(format!(
        "{op} {model} {kv_dtype} {} {}{more} {verb} above the ceiling, at {}: a cache held its bytes, another program took \
         cores from the kernels that measure the ceiling, or these are not the fastest on this driver",
        lengths(above[0].1),
        mode.name(),
        percent(*share),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::*;
    use crate::common::Report as _;
    use crate::report::Adapter;

    fn report(read: f64, copy: f64, host: Option<f64>, shares: &[f64]) -> Report {
        let ceilings =
            Ceilings { read_gb_s: Some(read), copy_gb_s: Some(copy), host_read_gb_s: host, ..Ceilings::default() };
        let mut report = Report::new("paged-attention bench".into(), 7, Adapter::default(), ceilings);
        let case = |&share: &f64| CaseResult { fraction_of_read: Some(share), ..CaseResult::sample() };
        report.results = shares.iter().map(case).collect();
        report.note();
        report
    }

    #[test]
    fn x19_loads_that_are_slower_than_memory_are_said() {
        let slow = report(1.12, 16.5, Some(24.4), &[]);
        assert_eq!(
            slow.notes,
            [
                "the driver's loads limit reading, not the memory: kernels read 1.12 GB/s at best, a copy moves 16.5 GB/s, \
              the host itself reads 24.4 GB/s"
            ]
        );
        assert!(slow.page().to_text().contains(&slow.notes[0]), "{}", slow.page().to_text());
        assert!(slow.to_json().unwrap().contains(&slow.notes[0]));
        assert_eq!(report(8.2, 16.5, None, &[]).notes.len(), 1);
        assert!(report(8.25, 16.5, None, &[]).notes.is_empty());
        assert!(report(512.0, 430.0, None, &[]).notes.is_empty());
    }

    #[test]
    fn x19_cores_that_others_took_are_said() {
        let mut busy = report(10.0, 10.0, None, &[]);
        busy.waiting_share = Some(0.784);
        busy.note();
        assert_eq!(
            busy.notes,
            [
                "another program took cores away: in timed runs, threads that had work waited for a core for 78.4 % of the time; \
              an idle machine is faster"
            ]
        );
        for share in [None, Some(0.1)] {
            busy.waiting_share = share;
            busy.note();
            assert!(busy.notes.is_empty(), "{share:?}");
        }
    }

    #[test]
    fn x19_a_case_above_its_ceiling_is_named() {
        assert!(report(10.0, 10.0, None, &[0.5, 1.0]).notes.is_empty());
        let mut one = report(10.0, 10.0, None, &[0.5, 1.02]);
        let start = |report: &Report| report.notes[0].split(':').next().unwrap().to_owned();
        assert_eq!(start(&one), "decode m f16 1 × 1 paged lies above the ceiling, at 102.0 %");
        assert!(one.page().to_text().contains(&one.notes[0]));
        one.results[0].fraction_of_read = Some(1.23);
        one.results[0].mode = Mode::Contiguous;
        one.note();
        assert_eq!(start(&one), "decode m f16 1 × 1 contiguous, and 1 more, lie above the ceiling, at 123.0 %");
    }

    #[test]
    fn x19_a_prompt_is_held_against_the_multiply_adds() {
        let mut prompt = report(10.0, 10.0, None, &[1.5]);
        (prompt.results[0].gflop_s, prompt.results[0].fraction_of_fma) = (Some(1.0), Some(0.5));
        prompt.note();
        assert!(prompt.notes.is_empty());
    }
}
