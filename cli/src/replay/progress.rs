//! Counts and times while a log is served.

use wgpu_paged_attention::blocks::CacheStats;
use wgpu_paged_attention::layout::KvLayout;

use super::timeline::Timeline;
use super::{InService, ServeRecord, TimelinePoint, Values, to_millionth};
use crate::trace::Log;

fn to_seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// What is counted as it happens, in memory that does not grow with the log.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) refused: u64,
    pub(super) empty: u64,
    finished: u64,
    cut: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    busy_ns: u64,
    utilisation: Values,
    fragmentation: Values,
    concurrency: Values,
    waiting: Values,
    queueing: Values,
    first_token: Values,
    between_tokens: Values,
    per_token: Values,
    latency: Values,
    timeline: Timeline,
}

impl Tally {
    pub(super) fn done(&self) -> usize {
        (self.finished + self.refused + self.empty) as usize
    }

    pub(super) fn token(&mut self, request: &mut InService, now_ns: u64, log: &Log) {
        let since = |then_ns: u64| to_seconds(now_ns - then_ns);
        self.output_tokens += 1;
        if request.generated == 1 {
            request.first_token_ns = now_ns;
            self.first_token.add(since(request.arrival_ns));
        } else {
            self.between_tokens.add(since(request.last_token_ns));
        }
        request.last_token_ns = now_ns;
        if request.is_finished() {
            self.finished += 1;
            self.cut += u64::from(request.output_tokens < log.requests[request.number].output_tokens);
            self.prompt_tokens += u64::from(request.prompt_tokens);
            self.queueing.add(to_seconds(request.admitted_ns - request.arrival_ns));
            self.latency.add(since(request.arrival_ns));
            if request.generated > 1 {
                self.per_token.add(since(request.first_token_ns) / f64::from(request.generated - 1));
            }
        }
    }

    /// A step has ended at `now_ns`; `stats` are those behind it.
    pub(super) fn step(&mut self, now_ns: u64, step_ns: u64, stats: &CacheStats, running: usize, waiting: usize) {
        let seconds = to_seconds(step_ns);
        self.busy_ns += step_ns;
        // Between a step that ends the last request and the next arrival nothing is reserved.
        if stats.reserved_tokens > 0 {
            self.utilisation.add_for(stats.utilisation, seconds);
            self.fragmentation.add_for(1.0 - stats.utilisation, seconds);
        }
        self.concurrency.add_for(running as f64, seconds);
        self.waiting.add_for(waiting as f64, seconds);
        self.timeline.add(TimelinePoint {
            time_s: to_millionth(to_seconds(now_ns)),
            utilisation: to_millionth(stats.utilisation),
            reserved_tokens: stats.reserved_tokens,
            filled_tokens: stats.filled_tokens,
            running: running as u32,
            waiting: waiting as u32,
        });
    }

    pub(super) fn record(self, paged: bool, elapsed_ns: u64, layout: &KvLayout) -> ServeRecord {
        let elapsed_s = to_seconds(elapsed_ns);
        let per_s = |count: u64| if elapsed_s > 0.0 { to_millionth(count as f64 / elapsed_s) } else { 0.0 };
        ServeRecord {
            paged,
            capacity_tokens: layout.num_slots(),
            finished: self.finished,
            cut: self.cut,
            refused: self.refused,
            empty: self.empty,
            steps: self.steps,
            elapsed_s: to_millionth(elapsed_s),
            busy_s: to_millionth(to_seconds(self.busy_ns)),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            requests_per_s: per_s(self.finished),
            output_tokens_per_s: per_s(self.output_tokens),
            total_tokens_per_s: per_s(self.output_tokens + self.prompt_tokens),
            utilisation: self.utilisation.spread(),
            internal_fragmentation: self.fragmentation.spread(),
            concurrency: self.concurrency.spread(),
            waiting: self.waiting.spread(),
            queueing_s: self.queueing.spread(),
            time_to_first_token_s: self.first_token.spread(),
            time_between_tokens_s: self.between_tokens.spread(),
            time_per_output_token_s: self.per_token.spread(),
            latency_s: self.latency.spread(),
            timeline: self.timeline.points,
            ..ServeRecord::default()
        }
    }
}
