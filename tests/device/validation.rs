//! Bad input is answered with an error that names it, before anything is recorded: the pools stay as they are, and the
//! same step can still be recorded right.

use crate::common::engine::{Request, StepIo, TestEngine};
use crate::common::{gpu, pool_words, with_splits};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{LayoutError, PlanError};
use wgpu_paged_attention::gpu::{
    AppendIo, AttentionIo, AttentionSpec, DeviceError, DeviceProfile, GpuError, IoFormat, IoSlice, KvCache, Step,
};
use wgpu_paged_attention::plan::{Append, RawTables, Schedule, StepPlan, Tables};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;
use wgpu_paged_attention::wgpu::BufferUsages as Usage;

fn config() -> CacheConfig {
    CacheConfig::new(2, 2, 8).with_block_size(4).with_num_blocks(8).with_max_seq_len(32).with_max_sequences(4)
}

/// Two sequences, of which the first has a past.
fn engine(gpu: &Gpu) -> (TestEngine, [Request<'static>; 2]) {
    let mut engine = TestEngine::plain(gpu, &config(), 4);
    let (a, b) = (engine.seq_of(&[1, 2, 3, 4, 5]), engine.seq());
    (engine, [(a, &[6]), (b, &[7, 8, 9])])
}

/// Lets `wrong` fail while a step is being recorded, shows that it left no trace, and records the step right.
#[track_caller]
fn refused(
    wrong: impl Fn(&TestEngine, &mut wgpu::ComputePass<'_>, &Step, &StepIo) -> Result<(), GpuError>,
) -> Option<GpuError> {
    let gpu = gpu()?;
    let (mut engine, requests) = engine(&gpu);
    let layers = engine.io(&requests);
    let io = &layers[0];
    engine.reserve(&requests);
    let before = pool_words(&gpu, &engine.cache);

    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = engine.cache.begin_step(&mut encoder, &engine.plan).unwrap();
    let error = {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        wrong(&engine, &mut pass, &step, io).unwrap_err()
    };
    gpu.submit(encoder);
    assert_eq!(pool_words(&gpu, &engine.cache), before, "{error} left a trace");
    assert_eq!(gpu.read::<f32>(&io.out).unwrap(), vec![123.0; (io.out.size() / 4) as usize], "{error} wrote an output");

    let mut encoder = engine.encoder();
    engine.record(&mut encoder, &step, &layers);
    engine.finish_right(encoder, &requests, &layers);
    Some(error)
}

fn buffer(engine: &TestEngine, size: u64, usage: Usage) -> wgpu::Buffer {
    let descriptor = wgpu::BufferDescriptor { label: Some("test"), size, usage, mapped_at_creation: false };
    engine.gpu.device.create_buffer(&descriptor)
}

/// Asserts which argument the error names and what it says, unless there is no device.
macro_rules! assert_refused {
    ($error:expr, $name:expr, $words:expr) => {
        if let Some(error) = $error {
            assert!(matches!(&error, GpuError::Argument(argument) if argument.name == $name), "{error:?}");
            let said = error.to_string();
            for word in $words {
                assert!(said.contains(word), "`{said}` does not say `{word}`");
            }
        }
    };
}

#[test]
fn a_short_buffer_is_named_with_its_size_and_the_size_needed() {
    // 4 tokens of 2 heads of 8 elements; 4 rows of 4 heads of 8
    let error = refused(|engine, pass, step, io| {
        engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(io.k.slice(..252), io.v.slice(..)))
    });
    assert_refused!(error, "k", ["k has 252 bytes", "256"]);
    let error = refused(|engine, pass, step, io| {
        engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(io.k.slice(..), io.v.slice(..4)))
    });
    assert_refused!(error, "v", ["v has 4 bytes", "256"]);
    let error = refused(|engine, pass, step, io| {
        let io = AttentionIo::new(io.q.slice(..508), io.out.slice(..));
        engine.cache.attend(pass, &engine.attention, step, 0, io)
    });
    assert_refused!(error, "q", ["q has 508 bytes", "512"]);
    let error = refused(|engine, pass, step, io| {
        let io = AttentionIo::new(io.q.slice(..), io.out.slice(..256));
        engine.cache.attend(pass, &engine.attention, step, 1, io)
    });
    assert_refused!(error, "out", ["out has 256 bytes", "512"]);
    let error = refused(|engine, pass, step, io| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_lse())?;
        let lse = buffer(engine, 60, Usage::STORAGE);
        engine.cache.attend(pass, &attention, step, 0, io.attend().with_lse(lse.slice(..)))
    });
    assert_refused!(error, "lse", ["lse has 60 bytes", "64"]);
}

#[test]
fn a_buffer_without_the_storage_usage_is_named() {
    let error = refused(|engine, pass, step, io| {
        let v = buffer(engine, 256, Usage::COPY_DST | Usage::COPY_SRC);
        engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(io.k.slice(..), v.slice(..)))
    });
    assert_refused!(error, "v", ["v lacks", "STORAGE"]);
    let error = refused(|engine, pass, step, io| {
        let out = buffer(engine, 512, Usage::UNIFORM);
        engine.cache.attend(pass, &engine.attention, step, 0, AttentionIo::new(io.q.slice(..), out.slice(..)))
    });
    assert_refused!(error, "out", ["out lacks"]);
}

#[test]
fn a_slice_that_starts_where_the_kernels_cannot_is_named() {
    let error = refused(|engine, pass, step, io| {
        let k = buffer(engine, 1024, Usage::STORAGE);
        engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(k.slice(6..), io.v.slice(..)))
    });
    assert_refused!(error, "k", ["k starts at byte 6", "multiple of 4"]);
    let error = refused(|engine, pass, step, io| {
        let q = buffer(engine, 1024, Usage::STORAGE);
        let io = AttentionIo::new(q.slice(8..), io.out.slice(..));
        engine.cache.attend(pass, &engine.attention, step, 0, io)
    });
    assert_refused!(error, "q", ["q starts at byte 8", "multiple of 16", "with_word_alignment"]);
    let error = refused(|engine, pass, step, io| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_word_alignment())?;
        let out = buffer(engine, 1024, Usage::STORAGE);
        let io = AttentionIo::new(io.q.slice(..), out.slice(10..));
        engine.cache.attend(pass, &attention, step, 0, io)
    });
    assert_refused!(error, "out", ["out starts at byte 10", "multiple of 4; move it"]);
}

#[test]
fn a_stride_that_is_too_short_or_uneven_or_runs_past_the_slice_is_named() {
    // 4 tokens of 2 heads of 8 elements; 4 rows of 4 heads of 8
    for (stride, words) in [(15, ["15 elements", "has 16"]), (u32::MAX, ["256 bytes", "every 4294967295"])] {
        let error = refused(|engine, pass, step, io| {
            let k = IoSlice::new(io.k.slice(..)).with_token_stride(stride);
            engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(k, io.v.slice(..)))
        });
        assert_refused!(error, "k", words);
    }
    let error = refused(|engine, pass, step, io| {
        let v = IoSlice::new(io.v.slice(..)).with_token_stride(17);
        engine.cache.append(pass, &engine.appender, step, 0, AppendIo::new(io.k.slice(..), v))
    });
    assert_refused!(error, "v", ["v has 256 bytes, but 268 are needed for 4 tokens every 17 elements"]);
    let error = refused(|engine, pass, step, io| {
        let out = buffer(engine, 4096, Usage::STORAGE);
        let out = IoSlice::new(out.slice(..)).with_token_stride(34);
        engine.cache.attend(pass, &engine.attention, step, 0, AttentionIo::new(io.q.slice(..), out))
    });
    assert_refused!(error, "out", ["stride of 34 elements", "multiple of 4", "with_word_alignment"]);
    let error = refused(|engine, pass, step, io| {
        let spec = AttentionSpec::new(4).with_io_format(IoFormat::F16).with_word_alignment();
        let attention = engine.cache.attention(spec)?;
        let q = IoSlice::new(io.q.slice(..)).with_token_stride(33);
        engine.cache.attend(pass, &attention, step, 0, AttentionIo::new(q, io.out.slice(..)))
    });
    assert_refused!(error, "q", ["stride of 33 elements", "multiple of 2; move it"]);
}

#[test]
fn one_buffer_for_reading_and_writing_is_refused_unless_the_spec_allows_it() {
    let error = refused(|engine, pass, step, _| {
        let both = buffer(engine, 1024, Usage::STORAGE);
        let io = AttentionIo::new(both.slice(..512), both.slice(512..));
        engine.cache.attend(pass, &engine.attention, step, 0, io)
    });
    assert_refused!(error, "q", ["q and out share a buffer", "with_shared_buffers"]);
    let error = refused(|engine, pass, step, io| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_lse())?;
        engine.cache.attend(pass, &attention, step, 0, io.attend().with_lse(io.q.slice(..)))
    });
    assert_refused!(error, "q", ["q and lse"]);
}

#[test]
fn bytes_that_are_read_and_written_are_refused_with_both_ranges() {
    let error = refused(|engine, pass, step, _| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_shared_buffers())?;
        let both = buffer(engine, 1024, Usage::STORAGE);
        let io = AttentionIo::new(both.slice(..), both.slice(496..));
        engine.cache.attend(pass, &attention, step, 0, io)
    });
    assert_refused!(error, "q", ["q and out overlap", "bytes 0..512 and bytes 496..1008"]);
    // Columns of one tensor, of which one is too wide.
    let error = refused(|engine, pass, step, _| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_shared_buffers())?;
        let both = buffer(engine, 2048, Usage::STORAGE);
        let [q, out] = [0, 112].map(|at| IoSlice::new(both.slice(at..)).with_token_stride(64));
        engine.cache.attend(pass, &attention, step, 0, AttentionIo::new(q, out))
    });
    assert_refused!(error, "q", ["bytes 0..896 (128 in every 256) and bytes 112..1008 (128 in every 256)"]);
    let error = refused(|engine, pass, step, io| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_lse())?;
        let out = buffer(engine, 1024, Usage::STORAGE);
        let io = AttentionIo::new(io.q.slice(..), out.slice(..)).with_lse(out.slice(508..));
        engine.cache.attend(pass, &attention, step, 0, io)
    });
    assert_refused!(error, "out", ["out and lse overlap", "bytes 0..512 and bytes 508..572"]);
}

#[test]
fn a_layer_behind_the_last_is_refused() {
    for layer in [2, 65_536, u32::MAX] {
        let append =
            refused(|engine, pass, step, io| engine.cache.append(pass, &engine.appender, step, layer, io.append()));
        let attend =
            refused(|engine, pass, step, io| engine.cache.attend(pass, &engine.attention, step, layer, io.attend()));
        for error in [append, attend] {
            assert_refused!(error, "layer", [format!("{layer} does not exist").as_str(), "has 2"]);
        }
    }
}

#[test]
fn a_log_sum_exp_that_nobody_asked_for_is_refused_and_so_is_a_missing_one() {
    let error = refused(|engine, pass, step, io| {
        let lse = buffer(engine, 64, Usage::STORAGE);
        engine.cache.attend(pass, &engine.attention, step, 0, io.attend().with_lse(lse.slice(..)))
    });
    assert_refused!(error, "lse", ["was given", "AttentionSpec::with_lse"]);
    let error = refused(|engine, pass, step, io| {
        let attention = engine.cache.attention(AttentionSpec::new(4).with_lse())?;
        engine.cache.attend(pass, &attention, step, 0, io.attend())
    });
    assert_refused!(error, "lse", ["is missing"]);
}

#[test]
fn steps_attentions_and_plans_of_a_cache_of_another_shape_are_refused() {
    let other = |engine: &TestEngine| {
        let config = config().with_num_blocks(7);
        KvCache::new(&engine.gpu.device, &config.layout().unwrap()).unwrap()
    };
    let error = refused(|engine, pass, step, io| other(engine).append(pass, &engine.appender, step, 0, io.append()));
    assert_refused!(error, "step", ["another cache"]);
    let error = refused(|engine, pass, step, io| {
        let attention = other(engine).attention(AttentionSpec::new(4))?;
        engine.cache.attend(pass, &attention, step, 0, io.attend())
    });
    assert_refused!(error, "attention", ["attention"]);
    let error = refused(|engine, _, _, _| {
        let mut encoder = engine.gpu.device.create_command_encoder(&Default::default());
        other(engine).begin_step(&mut encoder, &engine.plan).map(drop)
    });
    assert_refused!(error, "plan", ["plan"]);
    let error = refused(|engine, pass, step, io| {
        let profile = with_splits(engine.cache.profile(), 3);
        let cache = KvCache::with_profile(&engine.gpu.device, engine.cache.layout(), profile)?;
        engine.cache.attend(pass, &cache.attention(AttentionSpec::new(4))?, step, 0, io.attend())
    });
    assert_refused!(error, "attention", ["another cache"]);
}

#[test]
fn head_counts_that_do_not_divide_and_scales_that_are_none_are_refused() {
    let Some(gpu) = gpu() else { return };
    let cache = KvCache::new(&gpu.device, &config().layout().unwrap()).unwrap();
    for num_q_heads in [0, 1, 3, 5, u32::MAX] {
        let error = cache.attention(AttentionSpec::new(num_q_heads)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("num_q_heads is {num_q_heads}, not")), "{error:?}");
    }
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -1.0] {
        let error = cache.attention(AttentionSpec::new(4).with_scale(scale)).unwrap_err();
        assert!(
            matches!(&error, GpuError::Spec(spec) if spec.option == "scale" && spec.problem.contains(&scale.to_string())),
            "{error:?}"
        );
    }
    assert!(cache.attention(AttentionSpec::new(4).with_scale(f32::MIN_POSITIVE)).is_ok());
}

#[test]
fn tables_that_contradict_themselves_leave_an_empty_plan() {
    let layout = config().layout().unwrap();
    let csr = |indptr, last_page_len| Tables::Csr { indptr, indices: &[1, 2, 3], last_page_len };
    let good = RawTables { cu_seqlens_q: Some(&[0, 1, 2]), ..RawTables::new(csr(&[0, 1, 3], &[4, 1])) };
    let positions = |batch_indices| Append::Positions { batch_indices, positions: &[3, 4] };
    let cases = [
        (RawTables { tables: csr(&[1, 1, 3], &[4, 1]), ..good }, "indptr[0] is 1; it must be 0"),
        (RawTables { tables: csr(&[0, 3, 1], &[4, 1]), ..good }, "indptr[2] is 1, below the 3 before it"),
        (RawTables { tables: csr(&[0, 1, 4], &[4, 1]), ..good }, "indptr[2] is 4, but indices has 3 elements"),
        (RawTables { tables: csr(&[0, 1, 3], &[4, 5]), ..good }, "last_page_len[1] is 5, outside 1..=4"),
        (RawTables { tables: csr(&[0, 1, 3], &[0, 1]), ..good }, "last_page_len[0] is 0, outside 1..=4"),
        (RawTables { cu_seqlens_q: Some(&[0, 2, 1]), ..good }, "cu_seqlens_q[2] is 1, below the 2 before it"),
        (RawTables { append: positions(&[0, 2]), ..good }, "batch_indices[1] is 2, outside 0..2"),
        (RawTables { append: positions(&[0, -2]), ..good }, "batch_indices[1] is -2"),
        (RawTables { append: positions(&[1, 0]), ..good }, "positions[1] is 4, but sequence 0 has 4 tokens"),
        (RawTables { append: positions(&[0]), ..good }, "batch_indices has 1 elements instead of 2"),
    ];
    let mut plan = StepPlan::new(Schedule::default());
    for (wrong, words) in cases {
        plan.plan_tables(&layout, &RawTables { append: positions(&[0, 1]), ..good }).unwrap();
        assert_eq!(plan.slots(), [4 + 3, 3 * 4]);
        let said = plan.plan_tables(&layout, &wrong).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
        assert_eq!((plan.num_rows(), plan.num_tokens(), plan.inline_tables().len()), (0, 0, 0), "{said}");
    }
}

#[test]
fn what_exceeds_the_profile_of_the_device_is_refused_with_the_limit() {
    let Some(gpu) = gpu() else { return };
    let (engine, _) = engine(&gpu);
    let layout = config().layout().unwrap();
    let with = |change: &dyn Fn(&mut DeviceProfile)| {
        let mut profile = DeviceProfile::of(&gpu.device);
        change(&mut profile);
        KvCache::with_profile(&gpu.device, &layout, profile)
    };
    // one head of one layer: 8 blocks of 4 tokens of 16 bytes
    let error = with(&|profile| profile.max_binding_bytes = 511).unwrap_err();
    let wanted = LayoutError::HeadTooLarge { head_bytes: 512, limit: 511, num_blocks: 8, max_blocks: 7 };
    assert!(matches!(&error, GpuError::Layout(layout) if *layout == wanted), "{error:?}");
    assert!(with(&|profile| profile.max_binding_bytes = 512).is_ok());

    let mut plan = engine.cache.new_plan();
    let slots = vec![-1; 60];
    let (block_table, seq_lens) = ([0; 60], [4; 60]);
    let tables = RawTables {
        tables: Tables::Dense { block_table: &block_table, max_blocks: 1, seq_lens: &seq_lens },
        cu_seqlens_q: None,
        append: Append::Slots(&slots),
    };
    plan.plan_tables(&layout, &tables).unwrap();
    let begin = |cache: &KvCache| {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &plan);
        gpu.queue.submit([encoder.finish()]);
        step
    };
    let small = with(&|profile| profile.max_binding_bytes = 1024).unwrap();
    let error = begin(&small).unwrap_err();
    let bytes = plan.upload_bytes();
    assert!(
        matches!(error, GpuError::Device(DeviceError::Limit { needed, limit: 1024, .. }) if needed == bytes),
        "{error:?}"
    );

    let narrow = with(&|profile| profile.max_workgroups_per_dim = 7).unwrap();
    let step = begin(&narrow).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let (q, out) = (gpu.storage("q", &[0.0_f32; 60 * 32]), gpu.storage("out", &[0.0_f32; 60 * 32]));
    let attention = narrow.attention(AttentionSpec::new(4)).unwrap();
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let io = AttentionIo::new(q.slice(..), out.slice(..));
    let error = narrow.attend(&mut pass, &attention, &step, 0, io).unwrap_err();
    let wanted = PlanError::TooLarge { what: "workgroups", value: 120, limit: 49 };
    assert!(matches!(&error, GpuError::Plan(plan) if *plan == wanted), "{error:?}");
}
