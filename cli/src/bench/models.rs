//! Attention shapes to measure: a few published models by name, any other by its numbers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use wgpu_paged_attention::config::MAX_HEAD_DIM;

/// The most sequences in one case: workgroups in one dispatch dimension at WebGPU's default limits.
pub const MAX_BATCH: u32 = 65_535;
/// The longest context of one case, in tokens.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// The most query heads. Far above any model, and low enough that the bytes of the largest case fit in 64 bits.
pub const MAX_Q_HEADS: u32 = 4096;

/// Why a model or a case was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// No built-in model has this name.
    #[error("unknown model {given:?}; known are {known}")]
    UnknownModel {
        /// The name asked for.
        given: String,
        /// The names there are, separated by commas.
        known: String,
    },
    /// A case has too few or too many numbers.
    #[error("case {given:?} has {found} fields; give five, as in {CASE_FORM}")]
    FieldCount {
        /// The text of the case.
        given: String,
        /// Fields found in it.
        found: usize,
    },
    /// A field is no number, or lies outside its range.
    #[error("{field} {given:?} is not a whole number from {min} to {max}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its text.
        given: String,
        /// Smallest value accepted.
        min: u32,
        /// Largest value accepted.
        max: u32,
    },
    /// The query heads cannot be shared out evenly.
    #[error(
        "num_q_heads {num_q_heads} is not a multiple of num_kv_heads {num_kv_heads}; every KV head serves equally many query heads"
    )]
    Indivisible {
        /// Query heads given.
        num_q_heads: u32,
        /// KV heads given.
        num_kv_heads: u32,
    },
}

/// What [`CaseSpec`] is parsed from.
pub const CASE_FORM: &str = "BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM";

/// The attention shape of one model; the same in all its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// The name in reports.
    pub name: Cow<'static, str>,
    /// Query heads, a multiple of `num_kv_heads`.
    pub num_q_heads: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// Elements in one head's row.
    pub head_dim: u32,
}

impl ModelShape {
    /// The models known by name. They differ in what matters here: no sharing of KV heads, groups of four and of
    /// seven, and a single KV head with wide rows.
    pub const BUILT_IN: [Self; 4] = [
        Self::built_in("llama-13b", 40, 40, 128),
        Self::built_in("llama-3-8b", 32, 8, 128),
        Self::built_in("qwen2-7b", 28, 4, 128),
        Self::built_in("gemma-3-270m", 4, 1, 256),
    ];

    const fn built_in(name: &'static str, num_q_heads: u32, num_kv_heads: u32, head_dim: u32) -> Self {
        Self { name: Cow::Borrowed(name), num_q_heads, num_kv_heads, head_dim }
    }

    /// A shape of one's own, named after its numbers.
    ///
    /// # Errors
    /// [`ShapeError::Field`] for a number outside its range, [`ShapeError::Indivisible`] if KV heads would serve
    /// different numbers of query heads.
    pub fn custom(num_q_heads: u32, num_kv_heads: u32, head_dim: u32) -> Result<Self, ShapeError> {
        check("num_q_heads", num_q_heads, MAX_Q_HEADS)?;
        check("num_kv_heads", num_kv_heads, MAX_Q_HEADS)?;
        check("head_dim", head_dim, MAX_HEAD_DIM)?;
        if !num_q_heads.is_multiple_of(num_kv_heads) {
            return Err(ShapeError::Indivisible { num_q_heads, num_kv_heads });
        }
        let name = Cow::Owned(format!("{num_q_heads}/{num_kv_heads}x{head_dim}"));
        Ok(Self { name, num_q_heads, num_kv_heads, head_dim })
    }

    /// The built-in model of this name.
    ///
    /// # Errors
    /// [`ShapeError::UnknownModel`], which lists the names.
    pub fn by_name(name: &str) -> Result<Self, ShapeError> {
        Self::BUILT_IN.into_iter().find(|model| model.name == name).ok_or_else(|| {
            let known: Vec<_> = Self::BUILT_IN.into_iter().map(|model| model.name).collect();
            ShapeError::UnknownModel { given: clip(name), known: known.join(", ") }
        })
    }

    /// Query heads that share one KV head.
    pub fn group(&self) -> u32 {
        self.num_q_heads / self.num_kv_heads
    }
}

impl FromStr for ModelShape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        Self::by_name(text)
    }
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// One case given by its numbers: [`CASE_FORM`], such as `8,1024,32,8,128`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseSpec {
    /// Sequences in the batch.
    pub batch: u32,
    /// Tokens in the cache of each sequence.
    pub context: u32,
    /// Heads and their width.
    pub shape: ModelShape,
}

impl FromStr for CaseSpec {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [batch, context, num_q_heads, num_kv_heads, head_dim] = fields[..] else {
            return Err(ShapeError::FieldCount { given: clip(text), found: fields.len() });
        };
        Ok(Self {
            batch: number("batch", batch, MAX_BATCH)?,
            context: number("context", context, MAX_CONTEXT)?,
            shape: ModelShape::custom(
                number("num_q_heads", num_q_heads, MAX_Q_HEADS)?,
                number("num_kv_heads", num_kv_heads, MAX_Q_HEADS)?,
                number("head_dim", head_dim, MAX_HEAD_DIM)?,
            )?,
        })
    }
}

impl fmt::Display for CaseSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelShape { num_q_heads, num_kv_heads, head_dim, .. } = self.shape;
        write!(f, "{},{},{num_q_heads},{num_kv_heads},{head_dim}", self.batch, self.context)
    }
}

fn number(field: &'static str, text: &str, max: u32) -> Result<u32, ShapeError> {
    match text.parse() {
        Ok(value) if (1..=max).contains(&value) => Ok(value),
        _ => Err(ShapeError::Field { field, given: clip(text), min: 1, max }),
    }
}

fn check(field: &'static str, value: u32, max: u32) -> Result<(), ShapeError> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(ShapeError::Field { field, given: value.to_string(), min: 1, max })
    }
}

/// Enough of a text to recognise it in a message.
fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_models_obey_their_own_limits() {
        for model in ModelShape::BUILT_IN {
            let same = ModelShape::custom(model.num_q_heads, model.num_kv_heads, model.head_dim).unwrap();
            assert_eq!(same.group() * model.num_kv_heads, model.num_q_heads);
            assert_eq!(model.name.parse::<ModelShape>().unwrap(), model);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let text = ModelShape::by_name("llama-4").unwrap_err().to_string();
        assert_eq!(text, r#"unknown model "llama-4"; known are llama-13b, llama-3-8b, qwen2-7b, gemma-3-270m"#);
    }

    #[test]
    fn a_case_is_read_and_written_in_one_form() {
        let case: CaseSpec = " 8, 1024,32,8,128".parse().unwrap();
        assert_eq!((case.batch, case.context), (8, 1024));
        assert_eq!((case.shape.num_q_heads, case.shape.num_kv_heads, case.shape.head_dim), (32, 8, 128));
        assert_eq!(case.shape.name, "32/8x128");
        assert_eq!(case.to_string(), "8,1024,32,8,128");
        assert_eq!(case.to_string().parse::<CaseSpec>().unwrap(), case);
    }

    #[test]
    fn refusals_name_field_value_and_limit() {
        for (text, message) in [
            ("", r#"case "" has 1 fields; give five, as in BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM"#),
            (
                "1,2,3,4,5,6",
                r#"case "1,2,3,4,5,6" has 6 fields; give five, as in BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM"#,
            ),
            ("0,1024,32,8,128", r#"batch "0" is not a whole number from 1 to 65535"#),
            ("65536,1024,32,8,128", r#"batch "65536" is not a whole number from 1 to 65535"#),
            ("8,-1,32,8,128", r#"context "-1" is not a whole number from 1 to 16777216"#),
            ("8,99999999999,32,8,128", r#"context "99999999999" is not a whole number from 1 to 16777216"#),
            ("8,1024,0,8,128", r#"num_q_heads "0" is not a whole number from 1 to 4096"#),
            ("8,1024,32,0,128", r#"num_kv_heads "0" is not a whole number from 1 to 4096"#),
            ("8,1024,32,8,1e2", r#"head_dim "1e2" is not a whole number from 1 to 512"#),
            ("8,1024,32,8,513", r#"head_dim "513" is not a whole number from 1 to 512"#),
            (
                "8,1024,32,7,128",
                "num_q_heads 32 is not a multiple of num_kv_heads 7; every KV head serves equally many query heads",
            ),
            (
                "8,1024,8,32,128",
                "num_q_heads 8 is not a multiple of num_kv_heads 32; every KV head serves equally many query heads",
            ),
        ] {
            assert_eq!(text.parse::<CaseSpec>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_huge_argument_makes_a_short_message() {
        let text = "9".repeat(100_000);
        assert!(format!("{text},1,1,1,1").parse::<CaseSpec>().unwrap_err().to_string().len() < 200);
    }
}
