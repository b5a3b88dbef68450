//! The neighbours of a profile: the same with another value of a setting.

use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile, LaneComm, Scoring};
use wgpu_paged_attention::plan::{MAX_TILE_TOKENS, Schedule};
use wgpu_paged_attention::testkit::changed;

use super::OPS;
use crate::bench::Op;

/// A split has no fewer keys than this, or merging costs more than it brings.
const LEAST_SPLIT: u32 = 64;

/// What decides which neighbours make sense.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Tokens of a sequence that decodes.
    pub context: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Lanes of the smallest subgroup; 0 without subgroups.
    pub subgroup: u32,
    /// Whether kernels may load words of 64 bits.
    pub int64: bool,
    /// Tiles of chunks that matrix units multiply, if the device has any.
    pub matrices: Option<ChunkForm>,
}

/// A setting, or several that are changed together.
pub struct Axis {
    pub name: &'static str,
    /// The operations that it changes, the cheap one first: who loses there needs no further kernels.
    pub ops: &'static [Op],
    pub neighbours: fn(&DeviceProfile, &Surroundings) -> Vec<DeviceProfile>,
}

/// In the order in which they are searched: what promises most for its compile time first.
pub const AXES: &[Axis] = &[
    Axis { name: "keys of a split", ops: &[Op::Decode], neighbours: splits },
    Axis { name: "loads in flight", ops: &OPS, neighbours: loads },
    Axis { name: "words of a load", ops: &OPS, neighbours: wide_loads },
    // Only some lanes have a choice of scoring.
    Axis { name: "lanes", ops: &OPS, neighbours: lanes },
    Axis { name: "scoring", ops: &OPS, neighbours: scoring },
    Axis { name: "subgroups of a workgroup", ops: &OPS, neighbours: subgroups },
    Axis { name: "rows and tokens of a tile", ops: &OPS, neighbours: tiles },
    Axis { name: "tiles of chunks", ops: &[Op::Prefill], neighbours: chunks },
    Axis { name: "queries of a chunk", ops: &[Op::Prefill], neighbours: chunk_queries },
    Axis { name: "keys of a chunk's split", ops: &[Op::Prefill], neighbours: chunk_splits },
    Axis { name: "loops written out", ops: &OPS, neighbours: unrolled },
];

fn splits(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    // A split longer than the sequence is the whole sequence: what it costs a longer one would not be measured. And longer
    // ones take more loop rounds, which only loops that are written out have to spare.
    let counted = counts_rounds(profile) && !profile.unrolled;
    let whole = around.context.next_power_of_two();
    let most = if counted { whole.min(profile.split_tokens) } else { whole };
    let keys = halves_and_doubles(profile.split_tokens.min(whole), LEAST_SPLIT..=most);
    each(profile, keys, |it, keys| it.split_tokens = keys)
}

fn chunk_splits(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    // Where no prompt is a chunk, nothing would change.
    if profile.chunk_queries > around.prompt {
        return Vec::new();
    }
    let whole = around.prompt.next_power_of_two();
    let keys = halves_and_doubles(profile.chunk_split_tokens.min(whole), 4 * LEAST_SPLIT..=whole / 2);
    each(profile, keys, |it, keys| it.chunk_split_tokens = keys)
}

fn chunks(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    // They serve tokens once more each in the worst case, and a driver that counts rounds would refuse long prompts.
    if profile.chunk_queries > around.prompt || counts_rounds(profile) {
        return Vec::new();
    }
    let forms = [16, 32, 64].map(|rows| ChunkForm::WorkgroupTiles { rows }).into_iter().chain([ChunkForm::QueryTiles]);
    each(profile, forms.chain(around.matrices), |it, form| it.chunk_form = form)
}

fn chunk_queries(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    let is_chunk = profile.chunk_queries <= around.prompt;
    // Long tiles would soon have too many rounds.
    if !is_chunk && counts_rounds(profile) && !profile.unrolled {
        return Vec::new();
    }
    // A prompt is a chunk or it is none: how few queries should be one would take steps that are not measured.
    let other = if is_chunk { u32::MAX } else { Schedule::default().chunk_queries };
    vec![changed(profile, |it| it.chunk_queries = other)]
}

fn loads(profile: &DeviceProfile, _: &Surroundings) -> Vec<DeviceProfile> {
    // A driver that counts loop rounds gets a kernel without loops over units, which makes one load at a time: `loads` changes
    // nothing.
    if profile.unrolled && counts_rounds(profile) {
        return Vec::new();
    }
    each(profile, halves_and_doubles(profile.loads, 1..=16), |it, loads| it.loads = loads)
}

fn wide_loads(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    if around.int64 { vec![changed(profile, |it| it.wide_loads = !it.wide_loads)] } else { Vec::new() }
}

fn scoring(profile: &DeviceProfile, _: &Surroundings) -> Vec<DeviceProfile> {
    match profile.lane_comm {
        LaneComm::Subgroup { .. } => each(profile, Scoring::ALL, |it, scoring| it.scoring = scoring),
        // Where lanes meet in workgroup memory, the queries lie there anyway.
        LaneComm::Workgroup { .. } => Vec::new(),
    }
}

fn lanes(profile: &DeviceProfile, around: &Surroundings) -> Vec<DeviceProfile> {
    let (lane_comm, most) = (profile.lane_comm, around.subgroup);
    let mut all = Vec::new();
    let subgroups = [most, most / 2].into_iter().filter(|&lanes| lanes >= 4).map(|lanes| LaneComm::Subgroup { lanes });
    match lane_comm {
        LaneComm::Subgroup { .. } => {
            all.extend(subgroups.map(|comm| changed(profile, |it| (it.lane_comm, it.subgroups) = (comm, 1))));
        }
        // A software driver may take minutes to compile them, and nothing ends that.
        LaneComm::Workgroup { .. } if profile.software => {}
        LaneComm::Workgroup { .. } => all.extend(subgroups.map(|comm| {
            changed(profile, |it| (it.lane_comm, it.tile_rows, it.tile_tokens) = (comm, 2 * it.tile_rows, it.tile_rows))
        })),
    }
    let shared = profile.clone().without_subgroups();
    let widths: &[u32] = if profile.software { &[64] } else { &[32, 64, 128, 256] };
    all.extend(each(&shared, widths, |it, &lanes| it.lane_comm = LaneComm::Workgroup { lanes }));
    all
}

fn subgroups(profile: &DeviceProfile, _: &Surroundings) -> Vec<DeviceProfile> {
    match profile.lane_comm {
        // Refused where subgroups may have other sizes as well.
        LaneComm::Subgroup { .. } => {
            each(profile, halves_and_doubles(profile.subgroups, 1..=8), |it, subgroups| it.subgroups = subgroups)
        }
        LaneComm::Workgroup { .. } => Vec::new(),
    }
}

fn tiles(profile: &DeviceProfile, _: &Surroundings) -> Vec<DeviceProfile> {
    let (rows, tokens) = (profile.tile_rows, profile.tile_tokens);
    // A driver whose loops are not written out ends wide tiles too soon.
    if profile.software && !profile.unrolled && counts_rounds(profile) {
        return Vec::new();
    }
    // Mesa 22, which counts loop rounds, compiles more rows than it has by default for minutes; Mesa 26 takes seconds.
    let most = if counts_rounds(profile) { rows } else { 64 };
    let fits =
        |&(rows, tokens): &(u32, u32)| (1..=most).contains(&rows) && (1..=MAX_TILE_TOKENS.min(rows)).contains(&tokens);
    let fewer = [(rows / 2, tokens / 2), (rows / 2, tokens), (rows, tokens / 2)];
    let more = [(rows, 2 * tokens), (2 * rows, tokens), (2 * rows, 2 * tokens)];
    let pairs = fewer.into_iter().chain(more).filter(fits);
    each(profile, pairs, |it, pair| (it.tile_rows, it.tile_tokens) = pair)
}

fn unrolled(profile: &DeviceProfile, _: &Surroundings) -> Vec<DeviceProfile> {
    match (profile.software, profile.unrolled) {
        // A software driver takes minutes over loops that are written out where it does not need it.
        (true, false) => Vec::new(),
        (true, true) if counts_rounds(profile) => Vec::new(),
        (_, unrolled) => vec![changed(profile, |it| it.unrolled = !unrolled)],
    }
}

/// Whether the driver ends a kernel after a number of loop rounds.
fn counts_rounds(profile: &DeviceProfile) -> bool {
    profile.max_loop_rounds != u32::MAX
}

fn halves_and_doubles(value: u32, range: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = u32> {
    [value / 2, value.saturating_mul(2)].into_iter().filter(move |other| range.contains(other))
}

fn each<T>(
    profile: &DeviceProfile,
    values: impl IntoIterator<Item = T>,
    set: impl Fn(&mut DeviceProfile, T),
) -> Vec<DeviceProfile> {
    values.into_iter().map(|value| changed(profile, |it| set(it, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu_paged_attention::gpu::TunedProfile;
    use wgpu_paged_attention::wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

    fn info(device_type: DeviceType, lanes: u32, driver_info: &str) -> AdapterInfo {
        let mut info = AdapterInfo::new(device_type, Backend::Vulkan);
        (info.subgroup_min_size, info.subgroup_max_size) = (lanes, lanes);
        info.driver_info = driver_info.to_owned();
        info
    }

    fn adapters() -> [AdapterInfo; 4] {
        [
            info(DeviceType::DiscreteGpu, 32, ""),
            info(DeviceType::IntegratedGpu, 8, ""),
            info(DeviceType::Cpu, 8, "Mesa 22.3.6 (LLVM 15.0.6)"),
            info(DeviceType::Cpu, 8, "Mesa 26.1.6"),
        ]
    }

    const FEATURES: Features = Features::SUBGROUP.union(Features::SHADER_INT64);

    /// The profile of an adapter, and its neighbours along an axis.
    fn profiles(info: &AdapterInfo, axis: &Axis) -> (DeviceProfile, Vec<DeviceProfile>) {
        let own = DeviceProfile::new(info, FEATURES, &Limits::default());
        let around =
            Surroundings { context: 1024, prompt: 2048, subgroup: info.subgroup_min_size, int64: true, matrices: None };
        let neighbours = (axis.neighbours)(&own, &around);
        (own, neighbours)
    }

    /// What differs, of every neighbour.
    fn neighbours(info: &AdapterInfo, axis: &Axis) -> Vec<String> {
        let (own, neighbours) = profiles(info, axis);
        neighbours.iter().map(|profile| profile.differences(&own).join(", ")).collect()
    }

    #[test]
    fn neighbours_are_profiles_that_the_device_runs() {
        for info in adapters() {
            for profile in AXES.iter().flat_map(|axis| profiles(&info, axis).1) {
                let file = TunedProfile::new(&info, &profile, "", Vec::new());
                assert_eq!(file.for_device(&info, FEATURES, &Limits::default()), Ok(profile));
            }
        }
    }

    #[test]
    fn a_setting_has_neighbours_on_both_sides() {
        let [card, ..] = adapters();
        let of = |name: &str| {
            let axis = AXES.iter().find(|axis| axis.name == name).expect("an axis");
            neighbours(&card, axis)
        };
        assert_eq!(of("keys of a split"), ["split_tokens = 128", "split_tokens = 512"]);
        assert_eq!(of("loads in flight"), ["loads = 2"]);
        assert_eq!(of("rows and tokens of a tile").len(), 6);
        assert_eq!(of("keys of a chunk's split"), ["chunk_split_tokens = 1024"]);
        assert_eq!(of("queries of a chunk"), ["chunk_queries = 4294967295"]);
        assert_eq!(of("loops written out"), ["unrolled = true"]);
        assert_eq!(of("scoring"), ["", "scoring = \"shared-queries\"", "scoring = \"row-lanes\""]);
        assert_eq!(of("words of a load"), ["wide_loads = true"]);
        assert_eq!(of("tiles of chunks").iter().filter(|difference| !difference.is_empty()).count(), 3);
        assert_eq!(of("lanes").len(), 6);
        assert_eq!(of("subgroups of a workgroup"), ["subgroups = 2"]);
    }

    #[test]
    fn where_a_driver_counts_loop_rounds_loops_stay_written_out_or_serve_tokens_alone() {
        let [.., counts, _] = adapters();
        for profile in AXES.iter().flat_map(|axis| profiles(&counts, axis).1) {
            assert!(profile.unrolled || profile.tile_tokens == 1, "{profile:?}");
            assert!(profile.split_tokens <= 1024 && profile.tile_rows <= 16, "{profile:?}");
        }
    }
}
