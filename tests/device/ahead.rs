//! What engines prepare ahead: steps whose words are sampled on the device, and kernels of their own that read a step's words.

#[path = "../../examples/common/tiny_model.rs"]
mod tiny_model;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::blocks::{Domain, SeqId};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::Step;
use wgpu_paged_attention::plan::{Append, RawTables, STEP_WORDS_VERSION, StepPlan, Tables};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

use self::tiny_model::{END, HEAD_DIM, KV_HEADS, TinyEngine, WORDS};
use crate::common::engine::{TestEngine, config, words};
use crate::common::gpu;

/// What texts decoded `steps` at a time leave behind.
#[derive(Debug, PartialEq)]
struct Told {
    texts: Vec<Vec<u32>>,
    /// Of every text: the words of its rows of K and V, token by token.
    rows: Vec<Vec<u32>>,
    /// Tokens that the prefix cache finds of every text, with other words behind it.
    found: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// What came behind the end of a text stays.
    NoCut,
    /// The ids are told one token late.
    OtherIds,
}

fn tell(gpu: &Gpu, engine: &mut TinyEngine, steps: usize, fault: Fault) -> Told {
    engine.reset().unwrap();
    let prompt = |at: u32| (0..20 + 3 * at).map(|word| 1 + (word * at + at) % (WORDS - 1)).collect::<Vec<u32>>();
    let mut running: Vec<(SeqId, Vec<u32>, u32)> = Vec::new();
    for at in 1..6 {
        let seq = engine.manager.create_sequence().unwrap();
        let word = engine.prompt(seq, &prompt(at)).unwrap();
        running.push((seq, prompt(at), word));
    }
    let mut ended = Vec::new();
    while !running.is_empty() {
        let batch: Vec<_> = running.iter().map(|(seq, _, word)| (*seq, *word)).collect();
        for ((seq, text, word), said) in running.iter_mut().zip(engine.decode(&batch, steps).unwrap()) {
            // A long text ends without having said so.
            let room = 60_usize.saturating_sub(text.len());
            let kept = said.iter().position(|&word| word == END).unwrap_or(steps).min(room);
            let late = engine.manager.take_late_tokens(*seq).unwrap();
            let ids = match fault {
                Fault::OtherIds => &said[said.len() - kept..],
                Fault::NoCut => &said[..steps],
                Fault::None => &said[..kept],
            };
            if fault != Fault::NoCut {
                engine.manager.truncate(*seq, late.positions().start + kept as u32).unwrap();
            }
            engine.manager.add_token_ids(late, ids).unwrap();
            text.extend(&said[..kept]);
            *word = if text.len() == 60 { END } else { said[kept] };
        }
        ended.extend(running.extract_if(.., |(.., word)| *word == END).map(|(seq, text, _)| (seq, text)));
    }
    ended.sort();
    let rows = ended.iter().map(|(seq, _)| rows(gpu, engine, *seq)).collect();
    let texts: Vec<Vec<u32>> = ended.into_iter().map(|(_, text)| text).collect();
    let longer = |text: &Vec<u32>| [text.as_slice(), &[7; 20]].concat();
    let find = |text| engine.manager.cached_tokens(&longer(text), &Domain::default());
    let found = texts.iter().map(find).collect();
    engine.manager.check_invariants().unwrap();
    Told { texts, rows, found }
}

/// K and V of a sequence, as they are stored.
fn rows(gpu: &Gpu, engine: &TinyEngine, seq: SeqId) -> Vec<u32> {
    let (layout, table) = (engine.cache.layout(), engine.manager.block_table(seq).unwrap());
    let shard = &engine.cache.head_shards(0).unwrap()[0];
    let mut all = Vec::new();
    for pool in [&shard.k, &shard.v] {
        let pool = gpu.read::<u32>(pool).unwrap();
        for position in 0..engine.manager.seq_len(seq).unwrap() {
            let slot = layout.slot(table[(position / layout.block_size()) as usize], position);
            let row_words = HEAD_DIM as usize / 2;
            let first = layout.row_index(KV_HEADS, slot, 0) as usize * row_words;
            let second = layout.row_index(KV_HEADS, slot, 1) as usize * row_words;
            all.extend([&pool[first..][..row_words], &pool[second..][..row_words]].concat());
        }
    }
    all
}

#[test]
fn steps_of_one_submit_say_what_single_steps_say() {
    let Some(gpu) = gpu() else { return };
    let random = |count| {
        let mut rng = StdRng::seed_from_u64(3);
        (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
    };
    let mut engine = TinyEngine::new(gpu.device.clone(), gpu.queue.clone(), random).unwrap();
    let mut tell = |steps, fault| tell(&gpu, &mut engine, steps, fault);
    let one = tell(1, Fault::None);
    assert_eq!(one.found, one.texts.iter().map(|text| text.len() as u32 / 16 * 16).collect::<Vec<_>>());
    assert!(one.texts.iter().any(|text| text.len() < 60), "no text ends by itself");
    for steps in [2, 5, 16] {
        assert_eq!(tell(steps, Fault::None), one, "{steps} steps");
    }
    for fault in [Fault::NoCut, Fault::OtherIds] {
        assert_ne!(tell(5, fault), one, "a planted fault is not noticed");
    }
}

/// A kernel of an engine: copies what it is told of a step.
const READER: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var at = id.x;
    if (at < 5u) { out[id.x] = step[at]; return; }
    at -= 5u;
    if (at < step[1]) { out[id.x] = step[step[5] + at]; return; }
    at -= step[1];
    if (at < step[2]) { out[id.x] = step[step[6] + at]; return; }
    at -= step[2];
    if (at < step[3] + 1u) { out[id.x] = step[step[7] + at]; return; }
    at -= step[3] + 1u;
    if (at < step[4]) { out[id.x] = step[step[8] + at]; return; }
}
";

/// What that kernel should copy.
fn expected(plan: &StepPlan) -> Vec<u32> {
    let requests = plan.cu_seqlens_q().len() as u32 - 1;
    let mut words =
        vec![STEP_WORDS_VERSION, plan.num_rows(), plan.num_tokens(), requests, plan.last_rows().len() as u32];
    words.extend_from_slice(bytemuck::cast_slice(plan.positions()));
    words.extend_from_slice(plan.slots());
    words.extend_from_slice(plan.cu_seqlens_q());
    words.extend_from_slice(plan.last_rows());
    words
}

/// Runs a reader in a pass of its own, submitted with what `encoder` holds.
fn read_words(gpu: &Gpu, text: &str, mut encoder: wgpu::CommandEncoder, step: &Step, len: usize) -> Vec<u32> {
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: Default::default(),
        cache: None,
    });
    // One more than there is to write.
    let out = gpu.storage("out", &vec![0x4b4b_4b4b_u32; len + 1]);
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[
            wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(step.words()) },
            wgpu::BindGroupEntry { binding: 1, resource: out.as_entire_binding() },
        ],
    });
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups((len as u32 + 64).div_ceil(64), 1, 1);
    step.keep(&pass);
    drop(pass);
    gpu.submit(encoder);
    gpu.read(&out).unwrap()
}

/// Begins steps of many forms and calls `check` for each.
fn steps_of_all_forms(gpu: &Gpu, check: &mut dyn FnMut(wgpu::CommandEncoder, &Step, &StepPlan)) {
    let mut engine = TestEngine::plain(gpu, &config(KvDtype::F16, 60), 6);
    let (a, b) = (engine.seq_of(&words(40)), engine.seq_of(&words(3)));
    let (c, d) = (engine.fork(a), engine.seq());
    let [one, chunk, some] = [1, 37, 5].map(words);
    let forms: [&[(SeqId, &[u32])]; 6] = [
        &[(a, &one), (b, &one), (c, &one)],
        &[(d, &chunk)],
        &[(d, &[]), (b, &some), (a, &[]), (c, &one)],
        &[(a, &one), (b, &chunk), (c, &some), (d, &one)],
        &[(a, &[])],
        &[],
    ];
    for requests in forms {
        engine.reserve(requests);
        let mut encoder = engine.encoder();
        let step = engine.begin(&mut encoder);
        check(encoder, &step, &engine.plan);
        engine.commit(requests);
    }
    // Tables of the engine's own travel in the same words; some rows are padding, and one query has no key.
    let slots = [5, -1, 33, 34, 35, -1];
    let tables = RawTables {
        tables: Tables::Dense { block_table: &[0, 1, 2, 3, 4, 5], max_blocks: 2, seq_lens: &[20, 32, 0] },
        cu_seqlens_q: Some(&[0, 2, 5, 6]),
        append: Append::Slots(&slots),
    };
    let mut plan = engine.cache.new_plan();
    plan.plan_tables(engine.cache.layout(), &tables).unwrap();
    let mut encoder = engine.encoder();
    let step = engine.cache.begin_step(&mut encoder, &plan).unwrap();
    check(encoder, &step, &plan);
}

#[test]
fn kernels_of_an_engine_read_the_words_of_a_step() {
    let Some(gpu) = gpu() else { return };
    let mut forms = 0;
    steps_of_all_forms(&gpu, &mut |encoder, step, plan| {
        let want = expected(plan);
        let got = read_words(&gpu, READER, encoder, step, want.len());
        assert_eq!(got[..want.len()], want);
        assert_eq!(got[want.len()], 0x4b4b_4b4b);
        assert_eq!(step.words().size.map(u64::from), Some(plan.upload_bytes()));
        forms += 1;
    });
    assert_eq!(forms, 7);
}

#[test]
fn a_reader_of_other_words_is_noticed() {
    let Some(gpu) = gpu() else { return };
    for (right, wrong) in [("step[5]", "step[6]"), ("step[7]", "step[8]"), ("step[8]", "step[7]")] {
        let text = READER.replace(right, wrong);
        let mut noticed = false;
        steps_of_all_forms(&gpu, &mut |encoder, step, plan| {
            let want = expected(plan);
            noticed |= read_words(&gpu, &text, encoder, step, want.len())[..want.len()] != want;
        });
        assert!(noticed, "{wrong} for {right}");
    }
}
