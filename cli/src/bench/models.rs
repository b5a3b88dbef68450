//! Attention shapes to measure: some models by default, any other by its name, its config.json or its numbers.

use std::str::FromStr;

use wgpu_paged_attention::config::MAX_HEAD_DIM;

use crate::common::clip;
use crate::models::{Model, ShapeError, number};

pub use crate::models::{MAX_Q_HEADS, ModelShape};

/// The most sequences in one case: workgroups in one dispatch dimension at WebGPU's default limits.
pub const MAX_BATCH: u32 = 65_535;
pub const MAX_CONTEXT: u32 = 1 << 24;
const CASE_FORM: &str = "BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM";
/// Models that are measured by default. They differ in what matters here: no sharing of KV heads, groups of four and of
/// seven, and a single KV head with wide rows.
const MEASURED: [&str; 4] = ["llama-13b", "llama-3-8b", "qwen2-7b", "gemma-3-270m"];

pub fn measured() -> impl Iterator<Item = ModelShape> {
    // All of them are in the table, which a test checks.
    MEASURED.into_iter().filter_map(|name| Some(Model::by_name(name).ok()?.shape()))
}

/// One case given by its numbers: [`CASE_FORM`], such as `8,1024,32,8,128`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseSpec {
    pub batch: u32,
    pub context: u32,
    pub shape: ModelShape,
}

impl FromStr for CaseSpec {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [batch, context, num_q_heads, num_kv_heads, head_dim] = fields[..] else {
            return Err(ShapeError::FieldCount { given: clip(text), found: fields.len(), form: CASE_FORM });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_models_are_in_the_table_and_obey_the_limits() {
        assert_eq!(measured().map(|shape| shape.name.into_owned()).collect::<Vec<_>>(), MEASURED);
        for Model { num_q_heads, num_kv_heads, head_dim, .. } in Model::BUILT_IN {
            let shape = ModelShape::custom(num_q_heads, num_kv_heads, head_dim).unwrap();
            assert_eq!(shape.group() * num_kv_heads, num_q_heads);
        }
    }

    #[test]
    fn a_case_is_read_and_written_in_one_form() {
        let case: CaseSpec = " 8, 1024,32,8,128".parse().unwrap();
        assert_eq!((case.batch, case.context), (8, 1024));
        assert_eq!((case.shape.num_q_heads, case.shape.num_kv_heads, case.shape.head_dim), (32, 8, 128));
        assert_eq!(case.shape.name, "32/8x128");
        assert_eq!((case.batch, case.context, case.shape.to_string().as_str()), (8, 1024, "32/8x128"));
    }

    #[test]
    fn refusals_name_field_value_and_limit() {
        for (text, message) in [
            ("", r#"case "" has 1 field; give five, as in BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM"#),
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
