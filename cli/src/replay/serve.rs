//! The course of a replay, from the first arrival to the last token.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use super::progress::Tally;
use super::{
    Clock, InService, PrefixRecord, Scheduler, ServeError, ServeOptions, ServeRecord, StepObserver, to_millionth,
};
use crate::trace::{Log, Request, found_tokens};

/// What a step may take, in seconds: a nanosecond, the unit of all times here, up to 32 years.
const STEP_SECONDS: RangeInclusive<f64> = 1e-9..=1e9;

/// Serves a log with a paged cache, or a contiguous one of the same size, and says how that went.
/// `progress` gets the number of requests done now and then; once `cancel` is set, the replay stops after the current
/// step and reports what it has so far. `observer` sees every step before it is committed.
pub fn serve(
    log: &Log,
    options: &ServeOptions,
    paged: bool,
    clock: &dyn Clock,
    mut observer: Option<&mut dyn StepObserver>,
    progress: &mut dyn FnMut(usize),
    cancel: &AtomicBool,
) -> Result<ServeRecord, ServeError> {
    let mut scheduler = Scheduler::new(log, options, paged)?;
    let mut tally = Tally::default();
    let mut arrivals = log.requests.iter().enumerate().peekable();
    // Drawn requests do not begin at 0.
    let start_ns = log.requests.first().map_or(0, |first| first.arrival_ns);
    let mut now_ns = 0;

    while !cancel.load(Ordering::Relaxed) {
        while let Some((number, request)) = arrivals.next_if(|(_, request)| request.arrival_ns - start_ns <= now_ns) {
            match arrive(number, request, start_ns, scheduler.max_len()) {
                Arrival::Request(request) => scheduler.waiting.push_back(request),
                Arrival::Refused => tally.counts.refused += 1,
                Arrival::Empty => tally.counts.empty += 1,
            }
        }
        let Some(work) = scheduler.open_step(now_ns)? else {
            // All are served: the next thing to happen is an arrival.
            let Some((_, next)) = arrivals.peek() else { break };
            now_ns = next.arrival_ns - start_ns;
            continue;
        };
        tally.counts.steps += 1;
        if let Some(observer) = &mut observer {
            scheduler
                .show(&mut **observer)
                .map_err(|source| ServeError::Observer { step: tally.counts.steps, source })?;
        }
        let seconds = clock.step_s(&work);
        if !STEP_SECONDS.contains(&seconds) {
            return Err(ServeError::Clock { seconds, tokens: work.tokens() });
        }
        let step_ns = (seconds * 1e9).round() as u64;
        now_ns = u64::checked_add(now_ns, step_ns).ok_or(ServeError::EndOfTime { step: tally.counts.steps })?;
        let (running, waiting) = (scheduler.running.len(), scheduler.waiting.len());
        let done = tally.done();
        let stats = scheduler.close_step(|request| tally.token(request, now_ns, log))?;
        tally.step(now_ns, step_ns, &stats, running, waiting);
        if tally.done() > done {
            progress(tally.done());
        }
    }

    let mut record = tally.record(paged, now_ns, scheduler.manager.layout());
    record.unfinished = log.requests.len() as u64 - record.finished - record.refused - record.empty;
    record.preemptions = scheduler.manager.stats().preemptions;
    record.recomputed_tokens = scheduler.recomputed_tokens;
    if let Some(tokens_per_id) = log.tokens_per_id.filter(|_| scheduler.prefix_cache) {
        let max_len = scheduler.max_len();
        let served = log
            .requests
            .iter()
            .enumerate()
            .filter(|(number, request)| matches!(arrive(*number, request, start_ns, max_len), Arrival::Request(_)))
            // First come, first served: those that were looked up before an interruption.
            .take(scheduler.lookups.requests);
        let (infinite, all) = infinite_hits(served.map(|(_, request)| request), tokens_per_id);
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { to_millionth(part as f64 / whole as f64) };
        record.prefix = Some(PrefixRecord {
            prompt_tokens: scheduler.lookups.tokens,
            hit_tokens: scheduler.lookups.hits,
            hit_share: share(scheduler.lookups.hits, scheduler.lookups.tokens),
            infinite_share: share(infinite, all),
            evictions: scheduler.manager.stats().evictions,
        });
    }
    Ok(record)
}

enum Arrival {
    Request(InService),
    /// Its prompt leaves no room for an answer.
    Refused,
    Empty,
}

fn arrive(number: usize, request: &Request, start_ns: u64, max_len: u32) -> Arrival {
    // A model starts from one token at least.
    let prompt_tokens = request.prompt_tokens.max(1);
    if request.output_tokens == 0 {
        return Arrival::Empty;
    }
    if prompt_tokens > max_len {
        return Arrival::Refused;
    }
    Arrival::Request(InService {
        number,
        arrival_ns: request.arrival_ns - start_ns,
        prompt_tokens,
        // K and V of the last token are never needed.
        output_tokens: request.output_tokens.min(max_len - prompt_tokens + 1),
        ..InService::default()
    })
}

/// Prompt tokens that a cache would find that forgets nothing and computes every prompt the moment it arrives, and all
/// prompt tokens. At least one token of a prompt is always left to compute.
fn infinite_hits<'a>(requests: impl IntoIterator<Item = &'a Request>, tokens_per_id: u32) -> (u64, u64) {
    found_tokens(requests, tokens_per_id).fold((0, 0), |(hits, all), (request, found)| {
        // A model starts from one token at least.
        (hits + found, all + u64::from(request.prompt_tokens.max(1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::PrefixIds;

    #[test]
    fn only_leading_ids_are_found() {
        let request = |prompt_tokens, ids: &[u64]| {
            let prefix = PrefixIds::new(ids.iter().map(|&id| id..=id));
            Request { prompt_tokens, prefix, ..Request::default() }
        };
        let log = [
            request(10, &[1, 2]),
            request(12, &[1, 2, 3]), // 8 found
            request(12, &[9, 2, 3]), // none
            request(12, &[2, 1, 3]), // none: known, but no prompt began with 2
            request(12, &[1, 2, 3]), // all but one token
            request(5, &[]),
        ];
        assert_eq!(infinite_hits(&log, 4), (8 + 11, 63));
        assert_eq!(infinite_hits(&[], 4), (0, 0));
    }
}
