//! Faults that were found in use, each by the id that `CASES.md` gives it.

use crate::common::{bits, block_id, gpu, profiles, with_splits};
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, AttentionIo, AttentionSpec, BlockPair, ClearValue, DeviceError, ExternalElement,
    ExternalLayout, ExternalOrder, ExternalPool, GpuError, IoFormat, KvCache, QueryIo, State, StateMerger, StateShape,
    SwapInError,
};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::{BlockCopy, StepPlan};
use wgpu_paged_attention::testkit::{AdapterChoice, OpenError, Scenario, ScenarioSpec, adapters, choose_adapter};
use wgpu_paged_attention::wgpu;

fn layout() -> KvLayout {
    CacheConfig::new(1, 1, 8).with_num_blocks(4).with_max_seq_len(32).layout().unwrap()
}

/// Records a step into an encoder of another device: the words travel in the encoder, so there is no queue that could be
/// the wrong one, and what wgpu has to say of the encoder it says to that device, when it is finished.
#[test]
fn x03_x15_a_step_in_an_encoder_of_another_device_is_an_error_of_that_device_and_no_panic() {
    let (Some(gpu), Some(other)) = (gpu(), gpu()) else { return };
    let cache = KvCache::new(&gpu.device, &layout()).unwrap();
    let (appender, attention) =
        (cache.appender(AppendSpec::new()).unwrap(), cache.attention(AttentionSpec::new(1)).unwrap());
    let (mut manager, mut plan) = (CacheManager::new(&layout()).unwrap(), cache.new_plan());
    let seq = manager.create_sequence().unwrap();
    manager.reserve(&[(seq, 3)], &mut plan).unwrap();
    let [k, v, q, out] = [2.0, 2.0, 2.0, 9.0].map(|x: f32| gpu.storage("values", &[x; 24]));
    let record = |encoder: &mut wgpu::CommandEncoder| {
        let step = cache.begin_step(encoder, &plan).unwrap();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        cache.append(&mut pass, &appender, &step, 0, AppendIo::new(k.slice(..), v.slice(..))).unwrap();
        cache.attend(&mut pass, &attention, &step, 0, AttentionIo::new(q.slice(..), out.slice(..))).unwrap();
    };

    let mut encoder = other.device.create_command_encoder(&Default::default());
    let (ours, theirs) = (
        gpu.device.push_error_scope(wgpu::ErrorFilter::Validation),
        other.device.push_error_scope(wgpu::ErrorFilter::Validation),
    );
    record(&mut encoder);
    drop(encoder.finish());
    assert!(pollster::block_on(theirs.pop()).is_some(), "wgpu took an encoder of another device");
    assert!(pollster::block_on(ours.pop()).is_none());

    // The same plan still goes into an encoder of the right device.
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    record(&mut encoder);
    gpu.submit(encoder);
    assert_eq!(gpu.read::<f32>(&out).unwrap(), [2.0; 24]);
}

#[test]
fn x04_reading_back_from_a_lost_device_says_so() {
    let Some(gpu) = gpu() else { return };
    let buffer = gpu.storage("values", &[7_u32; 4]);
    assert_eq!(gpu.read::<u32>(&buffer).unwrap(), [7; 4]);
    let encoder = gpu.device.create_command_encoder(&Default::default());
    gpu.device.destroy();
    gpu.submit(encoder);
    gpu.submit(gpu.device.create_command_encoder(&Default::default()));
    assert!(gpu.read::<u32>(&buffer).is_none());
}

#[test]
fn x05_a_lost_device_is_named_by_every_call() {
    let Some(gpu) = gpu() else { return };
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F16 };
    let mut cache = KvCache::new(&gpu.device, &layout()).unwrap();
    let spec = AttentionSpec::new(1).with_lse();
    let (appender, attention) = (cache.appender(AppendSpec::new()).unwrap(), cache.attention(spec.clone()).unwrap());
    let (transfer, merger) = (cache.transfer(external).unwrap(), StateMerger::new(&gpu.device, IoFormat::F32).unwrap());
    let mut manager = CacheManager::new(&layout()).unwrap();
    let (mut plan, seq) = (cache.new_plan(), manager.create_sequence().unwrap());
    manager.reserve(&[(seq, 3)], &mut plan).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let (step, nothing) =
        (cache.begin_step(&mut encoder, &plan).unwrap(), cache.begin_step(&mut encoder, &cache.new_plan()).unwrap());
    let out = cache.swap_out(&mut encoder, &[block_id(0)]).unwrap();
    gpu.submit(encoder);
    let host = out.read().unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|label| gpu.storage(label, &[0.0_f32; 1024]));
    manager.commit(&mut plan).unwrap();
    let record = manager.export_sequence(seq).unwrap();
    let open = cache.new_plan();
    cache.set_clear_value(ClearValue::Poison);

    gpu.device.destroy();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut doors: Vec<(&str, Result<(), GpuError>)> = vec![
        ("new", KvCache::new(&gpu.device, &layout()).map(drop)),
        ("appender", cache.appender(AppendSpec::new()).map(drop)),
        ("attention", cache.attention(spec).map(drop)),
        ("attention that makes no sense", cache.attention(AttentionSpec::new(0)).map(drop)),
        ("transfer", cache.transfer(external).map(drop)),
        ("warm_up", cache.warm_up()),
        ("Attention::warm_up", attention.warm_up(&cache, 1)),
        ("StateMerger::new", StateMerger::new(&gpu.device, IoFormat::F32).map(drop)),
        ("begin_step", cache.begin_step(&mut encoder, &open).map(drop)),
        ("copy_blocks", cache.copy_blocks(&mut encoder, &[BlockCopy { source: block_id(0), target: block_id(1) }])),
        ("copy_blocks of none", cache.copy_blocks(&mut encoder, &[])),
        ("clear_blocks", cache.clear_blocks(&mut encoder, &[block_id(1)], ClearValue::Zeros)),
        ("swap_out", cache.swap_out(&mut encoder, &[]).map(drop)),
        ("swap_in", cache.swap_in(&mut encoder, &host, &[])),
        (
            "swap_in_sequences",
            match cache.swap_in_sequences(&mut encoder, &mut manager, &[record], &host) {
                Err(SwapInError::Gpu(error)) => Err(error),
                other => panic!("swap_in_sequences: {other:?}"),
            },
        ),
    ];
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let io = AttentionIo::new(a.slice(..), b.slice(..)).with_lse(c.slice(..));
    for (step, of) in [(&step, "tokens"), (&nothing, "none")] {
        let append = cache.append(&mut pass, &appender, step, 0, AppendIo::new(a.slice(..), b.slice(..)));
        let rotate = cache.rotate_queries(&mut pass, &appender, step, QueryIo::new(a.slice(..), b.slice(..)));
        doors.extend([(of, append), (of, rotate), (of, cache.attend(&mut pass, &attention, step, 0, io))]);
    }
    let pool = ExternalPool::new(1, a.slice(..), b.slice(..));
    for pairs in [&[BlockPair::new(0, block_id(1))][..], &[]] {
        doors.push(("import_pool", cache.import_pool(&mut pass, &transfer, 0, pool, pairs)));
        doors.push(("export_pool", cache.export_pool(&mut pass, &transfer, 0, pool, pairs)));
    }
    for num_rows in [0, 2] {
        let shape = StateShape::new(num_rows, 1, 8);
        let state = State::new;
        let (one, two) = (state(a.slice(..), b.slice(..)), state(c.slice(..), d.slice(..)));
        doors.push(("merge", merger.merge(&mut pass, shape, one, two)));
    }
    for (door, answer) in doors {
        assert!(matches!(answer, Err(GpuError::Device(DeviceError::Lost))), "{door}: {answer:?}");
    }
}

#[test]
fn x08_a_number_is_never_part_of_a_name_and_an_empty_name_is_none() {
    if gpu().is_none() {
        return;
    }
    let choose = |name: &str| {
        let choice = AdapterChoice { name: Some(name.to_owned()), ..AdapterChoice::default() };
        choose_adapter(&choice).map(|adapter| adapter.get_info().name)
    };
    let names: Vec<String> = adapters(None).unwrap().iter().map(|adapter| adapter.get_info().name).collect();
    assert_eq!(choose("0").unwrap(), names[0]);
    assert_eq!(choose(&names[0].to_uppercase()).unwrap(), names[0]);
    // Every run of digits in a name, beyond the list of adapters.
    let digits = names.iter().flat_map(|name| name.split(|c: char| !c.is_ascii_digit()));
    let beyond = digits.filter(|digits| digits.parse::<usize>().is_ok_and(|number| number >= names.len()));
    let wrong: Vec<&str> = beyond.chain(["", " ", "4294967296", "99999999999999999999999999"]).collect();
    for name in wrong {
        assert!(matches!(choose(name), Err(OpenError::NoSuchAdapter { .. })), "`{name}`: {:?}", choose(name));
    }
}

#[test]
fn x13_a_sink_of_minus_infinity_adds_nothing() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        // One split writes the result itself, several are merged.
        for split_tokens in [16, 256] {
            let mut spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 16, &[70, 3, 0]) };
            let profile = with_splits(&profile, split_tokens);
            let mut plain = Scenario::random(&spec, 9).unwrap();
            let without = plain.run(&gpu, &profile, None).unwrap();
            spec.variant.sinks = true;
            plain.spec = spec;
            plain.sinks = vec![f32::NEG_INFINITY; 4];
            let none = plain.run(&gpu, &profile, None).unwrap();
            assert_eq!((bits(&none.out), bits(&none.lse)), (bits(&without.out), bits(&without.lse)));
            // As low as that in binary logarithms, and beside a sink that counts.
            plain.sinks = vec![f32::NEG_INFINITY, 0.5, f32::MIN, 2.0];
            let mixed = plain.run(&gpu, &profile, None).unwrap();
            plain.judge(&mixed).unwrap();
            assert_ne!(bits(&mixed.out), bits(&none.out));
        }
    }
    let cache = KvCache::new(&gpu.device, &layout()).unwrap();
    for wrong in [f32::NAN, f32::INFINITY, f32::MAX] {
        let error = cache.attention(AttentionSpec::new(1).with_sinks([wrong])).unwrap_err();
        assert!(matches!(error, GpuError::Spec(ref spec) if spec.option == "sinks"), "{error:?}");
    }
    let error = cache.attention(AttentionSpec::new(1).with_alibi_slopes([f32::NEG_INFINITY])).unwrap_err();
    assert!(matches!(error, GpuError::Spec(ref spec) if spec.option == "alibi_slopes"), "{error:?}");
}

#[test]
fn x14_a_plan_of_a_closed_step_is_not_begun() {
    let Some(gpu) = gpu() else { return };
    // Two caches that one manager drives, as shards of the heads.
    let caches = [(); 2].map(|()| KvCache::new(&gpu.device, &layout()).unwrap());
    let (mut manager, mut plan) = (CacheManager::new(&layout()).unwrap(), caches[0].new_plan());
    let seq = manager.create_sequence().unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut begin = |plan: &StepPlan| -> Vec<Result<(), String>> {
        let begun = caches.iter().map(|cache| cache.begin_step(&mut encoder, plan).map(drop));
        begun.map(|begun| begun.map_err(|error| error.to_string())).collect()
    };
    let mut closed = |plan: &StepPlan| {
        for answer in begin(plan) {
            assert!(
                answer.is_err_and(|error| error.starts_with("plan is of a step that was committed or rolled back"))
            );
        }
    };
    manager.reserve(&[(seq, 3)], &mut plan).unwrap();
    for cache in &caches {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        cache.begin_step(&mut encoder, &plan).unwrap();
        cache.begin_step(&mut encoder, &plan).unwrap();
    }
    let copy = plan.clone();
    manager.commit(&mut plan).unwrap();
    closed(&plan);
    closed(&copy);
    // Its blocks are another sequence's now.
    manager.release(seq).unwrap();
    let other = manager.create_sequence().unwrap();
    manager.reserve(&[(other, 3)], &mut plan).unwrap();
    closed(&copy);
    let copy = plan.clone();
    manager.rollback(&mut plan).unwrap();
    closed(&copy);
    manager.reserve(&[(other, 2)], &mut plan).unwrap();
    manager.abandon();
    closed(&plan);
}
