//! Every form of the attention kernel that the device can run, whichever it would choose.

use crate::common;

use crate::common::batches::{Batches, Part, scenario};
use crate::common::{check, check_faults, gpu};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{DeviceProfile, KvCache, LaneComm, Scoring};
use wgpu_paged_attention::testkit::{Fault, Gpu, Scenario, ScenarioSpec, ScenarioVariant, changed};

const FULL: ScenarioVariant =
    ScenarioVariant { window: Some(40), soft_cap: Some(9.0), alibi: true, sinks: true, ..ScenarioVariant::PLAIN };

/// With narrow tiles, which a software driver compiles sooner, and short splits.
fn forms(gpu: &Gpu) -> Vec<DeviceProfile> {
    let own = DeviceProfile::of(&gpu.device);
    let narrow = |form: &DeviceProfile| {
        changed(form, |it| {
            // Few keys take few rounds; a driver that counts them would get loops that are written out.
            it.max_loop_rounds = u32::MAX;
            (it.tile_rows, it.tile_tokens, it.chunk_queries, it.split_tokens) = (4, 4, 9, 32);
        })
    };
    own.forms(&gpu.device).iter().map(narrow).collect()
}

#[test]
fn every_form_of_the_device_is_among_them() {
    let Some(gpu) = gpu() else { return };
    let (own, forms) = (DeviceProfile::of(&gpu.device), forms(&gpu));
    let names: Vec<_> = forms.iter().map(DeviceProfile::form_name).collect();
    assert_eq!(names[0], own.form_name());
    assert!(names.last().unwrap().starts_with("workgroup64"), "{names:?}");
    if matches!(own.lane_comm, LaneComm::Subgroup { .. }) {
        for scoring in Scoring::ALL {
            assert!(forms.iter().any(|form| form.scoring == scoring), "{names:?} lack {}", scoring.name());
        }
    }
    let wide = gpu.device.features().contains(wgpu_paged_attention::wgpu::Features::SHADER_INT64);
    assert_eq!(forms.iter().any(|form| form.wide_loads), wide, "{names:?}");
}

/// Rows of whole units and of parts of one, more units than lanes and fewer, and every format.
#[test]
fn every_form_is_right_for_every_format_and_for_odd_heads() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(4, 2, 80, None, 16), (3, 1, 5, None, 7), (2, 2, 128, Some(40), 16), (6, 2, 20, Some(72), 32)];
    for (at, form) in forms(&gpu).iter().enumerate() {
        for (turn, kv_dtype) in KvDtype::ALL.into_iter().enumerate() {
            let (num_q_heads, num_kv_heads, head_dim, v_head_dim, block_size) = shapes[(at + turn) % shapes.len()];
            let variant = if (at + turn) % 2 == 0 { FULL } else { ScenarioVariant::PLAIN };
            let loads = [1, 2, 4, 8][(at + turn / 2) % 4];
            let spec = ScenarioSpec {
                kv_dtype,
                v_head_dim,
                block_size,
                variant,
                lse: true,
                query_lens: Some(vec![1, 3, 20, 0, 1]),
                ..ScenarioSpec::decode(num_q_heads, num_kv_heads, head_dim, &[100, 33, 20, 0, 64])
            };
            // A tile of four tokens is a kernel more to compile.
            let tile_tokens = if turn % 3 == 0 { 4 } else { 1 };
            check(&gpu, &changed(form, |it| (it.loads, it.tile_tokens) = (loads, tile_tokens)), &spec, 3);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_a_tile_whatever_the_form() {
    let Some(gpu) = gpu() else { return };
    for form in forms(&gpu) {
        let lens = [70, 64, 90];
        let spec = ScenarioSpec { shared_blocks: 8, block_size: 8, lse: true, ..ScenarioSpec::decode(4, 2, 72, &lens) };
        let batches = Batches::new(&gpu, &form, scenario(&spec, 5));
        let parts = |first: usize, queries: u32| -> Vec<Part> {
            (0..lens.len()).map(|seq| Part { table: first + seq, len: lens[seq], queries }).collect()
        };
        let apart = batches.run(&parts(lens.len(), 1));
        assert_eq!(batches.run(&parts(0, 1)), apart, "{}: a shared prefix", form.form_name());
        let several = batches.run(&parts(lens.len(), 3));
        for (rows, alone) in several.iter().zip(&apart) {
            assert_eq!(rows[2], alone[0], "{}: the last of three queries", form.form_name());
        }
    }
}

#[test]
fn planted_faults_show_in_every_form() {
    let Some(gpu) = gpu() else { return };
    for form in forms(&gpu) {
        let scenario = Scenario::random(&ScenarioSpec::decode(2, 1, 16, &[40, 19]), 5).unwrap();
        check_faults(&gpu, &form, &scenario, &[Fault::SkipLastBlock, Fault::StrayBlock]);
    }
}

#[test]
fn a_form_that_the_device_cannot_run_is_refused_by_name() {
    let Some(gpu) = common::gpu_featureless() else { return };
    let own = DeviceProfile::of(&gpu.device);
    let layout = ScenarioSpec::decode(2, 1, 16, &[40]).layout(3).unwrap();
    let refused = |change: fn(&mut DeviceProfile), name: &str| {
        let problem = KvCache::with_profile(&gpu.device, &layout, changed(&own, change)).unwrap_err().to_string();
        assert!(problem.contains(name), "{problem}");
    };
    refused(|it| it.scoring = Scoring::RowLanes, "scoring is row-lanes");
    refused(|it| it.wide_loads = true, "wide_loads is true");
    refused(|it| it.lane_comm = LaneComm::Subgroup { lanes: 8 }, "lane_comm is subgroup8");
    refused(|it| it.subgroups = 2, "subgroups is 2");
    refused(|it| it.subgroups = 3, "subgroups is 3");
}
