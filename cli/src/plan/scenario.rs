//! Contiguous against paged for given lengths.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::layout::KvLayout;

use super::{SizingError, SizingOptions};
use crate::bench::LengthList;
use crate::report::fmt::count;
use crate::trace::Request;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    pub name: String,
    /// Requests that the bytes are of: 1 for a log, whose mean request is meant.
    pub requests: u64,
    pub mean_tokens: f64,
    pub contiguous_bytes: u64,
    pub paged_bytes: u64,
    pub saved: f64,
    pub contiguous_utilisation: f64,
    pub paged_utilisation: f64,
    pub contiguous_fit: u64,
    pub paged_fit: u64,
    pub published: Option<PublishedSaving>,
}

/// A row of the published table: LLaMA-13B in half precision, 4,096 tokens reserved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedSaving {
    /// Contiguous, in "GB" of 1,000 MiB.
    pub contiguous_gb: f64,
    pub paged_gb: f64,
    pub saved_percent: f64,
}

const PUBLISHED: [(u64, u32, PublishedSaving); 4] = [
    (1, 128, PublishedSaving { contiguous_gb: 3.2, paged_gb: 0.1, saved_percent: 97.0 }),
    (1, 1024, PublishedSaving { contiguous_gb: 3.2, paged_gb: 0.8, saved_percent: 75.0 }),
    (1, 4096, PublishedSaving { contiguous_gb: 3.2, paged_gb: 3.2, saved_percent: 0.0 }),
    (8, 1024, PublishedSaving { contiguous_gb: 25.6, paged_gb: 6.4, saved_percent: 75.0 }),
];

pub(super) fn all(
    options: &SizingOptions,
    paged: &KvLayout,
    contiguous: &KvLayout,
) -> Result<Vec<Scenario>, SizingError> {
    let comparison = Comparison { options, paged, contiguous };
    let mut scenarios = Vec::new();
    for list in &options.lens {
        if let Some(&tokens) = list.lens.iter().find(|&&tokens| tokens > options.max_seq_len) {
            return Err(SizingError::TooLong { tokens, max_seq_len: options.max_seq_len });
        }
        scenarios.push(comparison.of(&list.lens, name(list), true));
    }
    if options.lens.is_empty() {
        for (requests, tokens, _) in PUBLISHED.into_iter().filter(|&(_, tokens, _)| tokens <= options.max_seq_len) {
            scenarios.push(comparison.of(&vec![tokens; requests as usize], equal(requests, tokens), true));
        }
    }
    let tokens =
        |request: &Request| request.prompt_tokens.saturating_add(request.output_tokens).clamp(1, options.max_seq_len);
    for log in options.logs.iter().filter(|log| !log.requests.is_empty()) {
        let lens: Vec<u32> = log.requests.iter().map(tokens).collect();
        scenarios.push(comparison.of(&lens, log.name.clone(), false));
    }
    Ok(scenarios)
}

fn name(list: &LengthList) -> String {
    match &list.lens[..] {
        [first, rest @ ..] if rest.iter().all(|tokens| tokens == first) => equal(1 + rest.len() as u64, *first),
        _ => list.to_string(),
    }
}

fn equal(requests: u64, tokens: u32) -> String {
    format!("{requests} × {} tokens", count(tokens))
}

struct Comparison<'a> {
    options: &'a SizingOptions,
    paged: &'a KvLayout,
    contiguous: &'a KvLayout,
}

impl Comparison<'_> {
    /// `lens` are at least one, none of them longer than a sequence may be. Bytes are those of all requests together,
    /// or of the mean one.
    fn of(&self, lens: &[u32], name: String, together: bool) -> Scenario {
        let Self { options, paged, contiguous } = self;
        let count = lens.len() as u64;
        let tokens: u64 = lens.iter().map(|&tokens| u64::from(tokens)).sum();
        let blocks: u64 = lens.iter().map(|&tokens| u64::from(paged.blocks_for(tokens))).sum();
        let parts = if together { 1 } else { u128::from(count) };
        // Of 2^25 requests with 2^30 tokens of 2^44 bytes each at most.
        let bytes = |units: u64, unit_bytes: u64| {
            u64::try_from(u128::from(units) * u128::from(unit_bytes) / parts).unwrap_or(u64::MAX)
        };
        let reserved = count * u64::from(options.max_seq_len);
        let in_blocks = blocks * u64::from(paged.block_size());
        Scenario {
            name,
            requests: if together { count } else { 1 },
            mean_tokens: tokens as f64 / count as f64,
            contiguous_bytes: bytes(count, contiguous.block_bytes()),
            paged_bytes: bytes(blocks, paged.block_bytes()),
            // Below 0 where a last block reaches beyond the longest sequence.
            saved: 1.0 - in_blocks as f64 / reserved as f64,
            contiguous_utilisation: tokens as f64 / reserved as f64,
            paged_utilisation: tokens as f64 / in_blocks as f64,
            contiguous_fit: options.budget_bytes / contiguous.block_bytes(),
            paged_fit: (u128::from(paged.num_blocks()) * u128::from(count) / u128::from(blocks)) as u64,
            published: self.published(lens),
        }
    }

    fn published(&self, lens: &[u32]) -> Option<PublishedSaving> {
        let layout = self.contiguous;
        let shape = (layout.num_layers(), layout.num_kv_heads(), layout.head_dim(), layout.kv_dtype());
        if shape != (40, 40, 128, KvDtype::F16) || self.options.max_seq_len != 4096 {
            return None;
        }
        let same = |&&(requests, tokens, _): &&(u64, u32, PublishedSaving)| {
            requests == lens.len() as u64 && lens.iter().all(|&len| len == tokens)
        };
        PUBLISHED.iter().find(same).map(|&(_, _, published)| published)
    }
}
