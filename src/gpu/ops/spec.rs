//! What an attention computes, and what of it is refused.

use std::f32::consts::LOG2_E;

use crate::gpu::error::SpecError;
use crate::gpu::kernel::params::HeadTerms;
use crate::gpu::kernel::variant::{IoFormat, Variant};
use crate::layout::KvLayout;
use crate::setters::setters;

/// The most query heads with slopes or sinks: these travel in a uniform buffer of 64 KiB, WebGPU's default.
const MAX_HEADS_WITH_TERMS: u32 = 4096;

/// What an attention computes; a model has one, or a few that its layers share.
///
/// The score of a key is `scale · q·k`; a soft cap `c` makes it `c · tanh(score / c)`; keys that the query does not see are
/// left out; ALiBi adds `slope · (key position − query position)`. The softmax of the scores weights V.
///
/// Every option works in every kernel, alone and with any other; one that is off is not in the kernels at all.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    pub(crate) num_q_heads: u32,
    pub(crate) layer: u32,
    pub(crate) scale: Option<f32>,
    pub(crate) causal: bool,
    pub(crate) window: Option<u32>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) alibi_slopes: Option<Vec<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) lse: bool,
    pub(crate) io_format: IoFormat,
    pub(crate) shared_buffers: bool,
    pub(crate) word_alignment: bool,
}

impl AttentionSpec {
    /// Causal attention in f32 with a scale of `1 / sqrt(head_dim)` and no options, for `num_q_heads` query heads: a
    /// multiple of the cache's KV heads. Query head `h` reads KV head `h / (num_q_heads / num_kv_heads)`.
    pub fn new(num_q_heads: u32) -> Self {
        Self {
            num_q_heads,
            layer: 0,
            scale: None,
            causal: true,
            window: None,
            soft_cap: None,
            alibi_slopes: None,
            sinks: None,
            lse: false,
            io_format: IoFormat::F32,
            shared_buffers: false,
            word_alignment: false,
        }
    }

    setters! {
        /// Sets the layer of the model to whose shape the kernels are made, where layers are not all alike; 0 unless set. They
        /// serve every layer of as many KV heads, as wide, whose blocks are kept for the keys that the spec lets a query see.
        with_layer(layer: u32);
        /// Sets the factor of `q · k`: positive and finite.
        with_scale(scale: f32) => Some(scale);
        /// Sets whether a query sees no key past its own. If not, it sees all keys of its sequence.
        with_causal(causal: bool);
        /// Lets a query see a key only if `query position − key position < window`: the last `window` keys, its own included.
        /// FlashInfer's `window_left` is one less.
        with_window(window: u32) => Some(window);
        /// Caps the scores: positive and finite.
        with_soft_cap(soft_cap: f32) => Some(soft_cap);
        /// Sets the ALiBi slopes, one per query head.
        with_alibi_slopes(alibi_slopes: impl Into<Vec<f32>>) => Some(alibi_slopes.into());
        /// Sets the attention sinks, one per query head: logits that join the denominator, and with it the log-sum-exp, in no
        /// key's place. A head whose sink is −∞ has none.
        with_sinks(sinks: impl Into<Vec<f32>>) => Some(sinks.into());
        /// Sets the type of queries and outputs.
        with_io_format(io_format: IoFormat);
    }

    /// Asks for the log-sum-exp of the scores beside the output.
    #[must_use]
    pub fn with_lse(mut self) -> Self {
        self.lse = true;
        self
    }

    /// Lets queries and outputs lie in one buffer, as they do in an engine whose tensors come from an arena; only bytes that
    /// two of them have in common are refused. The kernels then bind the queries as if they wrote them.
    #[must_use]
    pub fn with_shared_buffers(mut self) -> Self {
        self.shared_buffers = true;
        self
    }

    /// Lets queries and outputs begin at any word and have strides of any number of words, where otherwise heads that are
    /// multiples of four elements wide want multiples of four elements. The kernels then read and write single words.
    #[must_use]
    pub fn with_word_alignment(mut self) -> Self {
        self.word_alignment = true;
        self
    }

    /// Elements that the places and strides of queries or outputs are multiples of, for heads so many elements wide.
    pub(crate) fn io_unit(&self, dim: u32) -> u32 {
        if dim.is_multiple_of(4) && !self.word_alignment { 4 } else { self.io_format.per_word() }
    }

    /// What the kernels are specialised for.
    pub(crate) fn variant(&self) -> Variant {
        let has_terms = self.alibi_slopes.is_some() || self.sinks.is_some();
        Variant {
            causal: self.causal,
            window: self.window.is_some(),
            soft_cap: self.soft_cap.is_some(),
            alibi: self.alibi_slopes.is_some(),
            sinks: self.sinks.is_some(),
            write_lse: self.lse,
            io_format: self.io_format,
            shared_io: self.shared_buffers,
            word_io: self.word_alignment,
            head_terms: if has_terms { self.num_q_heads } else { 0 },
        }
    }

    /// The factors of q and of a capped score; see `AttentionParams`.
    pub(crate) fn factors(&self, layout: &KvLayout) -> (f32, f32) {
        let scale = self.scale.unwrap_or_else(|| 1.0 / (layout.head_dim() as f32).sqrt());
        match self.soft_cap {
            Some(cap) => (scale / cap, cap * LOG2_E),
            None => (scale * LOG2_E, 1.0),
        }
    }

    /// Slopes and sinks as the kernels read them; one element if there are neither.
    pub(crate) fn head_terms(&self) -> Vec<HeadTerms> {
        let term = |terms: &Option<Vec<f32>>, head: usize| terms.as_ref().map_or(0.0, |terms| terms[head] * LOG2_E);
        (0..self.variant().head_terms.max(1) as usize)
            .map(|head| HeadTerms {
                slope_log2e: term(&self.alibi_slopes, head),
                // WGSL may assume that there is no infinity: the kernels take the lowest number for no sink.
                sink_log2e: term(&self.sinks, head).max(f32::MIN),
                padding: [0.0; 2],
            })
            .collect()
    }

    /// Refuses a spec that lets a query see more keys than a layer's blocks are kept for.
    pub(crate) fn check_window(&self, layer: u32, layout: &KvLayout) -> Result<(), SpecError> {
        // A contiguous sequence keeps all that it has.
        let Some(kept) = layout.window().filter(|_| layout.paged()) else { return Ok(()) };
        let given = match self.window {
            Some(window) if window <= kept => return Ok(()),
            Some(window) => format!("is {window}"),
            None => "is not set".to_owned(),
        };
        let problem = format!(
            "{given}, but layer {layer} keeps {kept} keys of a sequence, and blocks before them may be \
             others'; make the spec with_window({kept}) or less, or the cache with a wider one"
        );
        Err(SpecError::new("window", problem))
    }

    /// Refuses, by name, what contradicts itself or the cache.
    pub(crate) fn check(&self, layout: &KvLayout) -> Result<(), SpecError> {
        let num_q_heads = self.num_q_heads;
        check_query_heads(num_q_heads, layout)?;
        for (option, value) in [("scale", self.scale), ("soft_cap", self.soft_cap)] {
            value.map_or(Ok(()), |value| check_positive(option, value))?;
        }
        let (query_factor, _) = self.factors(layout);
        check_positive("scale / soft_cap", query_factor)?;
        if self.window == Some(0) {
            let problem = "is 0; it counts the query's own key, so give 1 or more, or leave it out for no window";
            return Err(SpecError::new("window", problem));
        }
        for (option, terms) in [("alibi_slopes", &self.alibi_slopes), ("sinks", &self.sinks)] {
            let Some(terms) = terms else { continue };
            let refuse = |problem| Err(SpecError::new(option, problem));
            if terms.len() != num_q_heads as usize {
                return refuse(format!("has {} elements, but there are {num_q_heads} query heads", terms.len()));
            }
            if num_q_heads > MAX_HEADS_WITH_TERMS {
                return refuse(format!("has {num_q_heads} elements; the limit is {MAX_HEADS_WITH_TERMS}"));
            }
            let allowed = |term: f32| term.is_finite() || (option == "sinks" && term == f32::NEG_INFINITY);
            if let Some(head) = terms.iter().position(|term| !allowed(term * LOG2_E)) {
                return refuse(format!("[{head}] is {}; it must be finite", terms[head]));
            }
        }
        self.io_format.check_dims(layout)
    }
}

pub(crate) fn check_query_heads(num_q_heads: u32, layout: &KvLayout) -> Result<(), SpecError> {
    let num_kv_heads = layout.num_kv_heads();
    if num_q_heads == 0 || !num_q_heads.is_multiple_of(num_kv_heads) {
        let problem = format!("is {num_q_heads}, not a positive multiple of the {num_kv_heads} KV heads of the cache");
        return Err(SpecError::new("num_q_heads", problem));
    }
    Ok(())
}

/// Refuses what is not positive and finite, also after the kernels have multiplied it by log2(e).
pub(crate) fn check_positive(option: &'static str, value: f32) -> Result<(), SpecError> {
    if (value * LOG2_E).is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(SpecError::new(option, format!("is {value}; it must be positive and finite")))
}
