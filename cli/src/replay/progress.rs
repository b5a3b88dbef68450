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
    pub(super) counts: ServeRecord,
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
        (self.counts.finished + self.counts.refused + self.counts.empty) as usize
    }

    pub(super) fn token(&mut self, request: &mut InService, now_ns: u64, log: &Log) {
        let since = |then_ns: u64| to_seconds(now_ns - then_ns);
        self.counts.output_tokens += 1;
        if request.generated == 1 {
            request.first_token_ns = now_ns;
            self.first_token.add(since(request.arrival_ns));
        } else {
            self.between_tokens.add(since(request.last_token_ns));
        }
        request.last_token_ns = now_ns;
        if request.is_finished() {
            self.counts.finished += 1;
            self.counts.cut += u64::from(request.output_tokens < log.requests[request.number].output_tokens);
            self.counts.prompt_tokens += u64::from(request.prompt_tokens);
            self.queueing.add(to_seconds(request.admitted_ns - request.arrival_ns));
            self.latency.add(since(request.arrival_ns));
            if request.generated > 1 {
                self.per_token.add(since(request.first_token_ns) / f64::from(request.generated - 1));
            }
        }
    }

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
            elapsed_s: to_millionth(elapsed_s),
            busy_s: to_millionth(to_seconds(self.busy_ns)),
            requests_per_s: per_s(self.counts.finished),
            output_tokens_per_s: per_s(self.counts.output_tokens),
            total_tokens_per_s: per_s(self.counts.output_tokens + self.counts.prompt_tokens),
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
            ..self.counts
        }
    }
}
