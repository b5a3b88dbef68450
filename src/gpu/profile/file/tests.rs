use proptest::prelude::*;
use wgpu::{Backend, DeviceType, Features, Limits};

use super::*;

/// A card with subgroups of 32.
fn info() -> wgpu::AdapterInfo {
    let mut info = wgpu::AdapterInfo::new(DeviceType::DiscreteGpu, Backend::Vulkan);
    (info.name, info.driver, info.driver_info) = ("Card \"9\"".into(), "maker".into(), "1.2.3".into());
    (info.subgroup_min_size, info.subgroup_max_size) = (32, 32);
    info
}

fn own() -> DeviceProfile {
    DeviceProfile::new(&info(), Features::SUBGROUP, &Limits::default())
}

/// The text of a file with a profile that differs from the card's own.
fn text() -> String {
    let mut profile = own();
    (profile.loads, profile.split_tokens) = (4, 512);
    let measured = Measured { operation: "decode 8 × 1024".into(), default_us: 20.0, tuned_us: 12.5 };
    TunedProfile::new(&info(), &profile, "llama-3-8b f16", vec![measured]).to_toml()
}

fn read(text: &str) -> Result<DeviceProfile, ProfileError> {
    TunedProfile::from_toml(text)?.for_device(&info(), Features::SUBGROUP, &Limits::default())
}

/// The text with another value of a key.
fn with(key: &str, value: &str) -> String {
    let line = |line: &str| match line.split_once(" = ") {
        Some((name, _)) if name == key => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    };
    let changed = text().lines().map(line).collect();
    assert_ne!(changed, text(), "{key}");
    changed
}

fn refusal(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    let profile = read(&text()).unwrap();
    assert_eq!(profile.differences(&own()), ["loads = 4", "split_tokens = 512"]);
    assert_eq!(own().differences(&own()), Vec::<String>::new());
    let file = TunedProfile::from_toml(&text()).unwrap();
    assert_eq!((file.to_toml(), &*file.tuned_for), (text(), "llama-3-8b f16"));
    assert_eq!(file.measured[0].tuned_us, 12.5);
}

#[test]
fn the_limits_are_those_of_the_device() {
    let limits = Limits { max_buffer_size: 1 << 20, ..Limits::default() };
    let profile = TunedProfile::from_toml(&text()).unwrap().for_device(&info(), Features::SUBGROUP, &limits).unwrap();
    assert_eq!((profile.max_buffer_bytes, profile.loads), (1 << 20, 4));
}

#[test]
fn a_profile_of_another_device_driver_or_version_is_refused_by_key() {
    for (key, here) in [
        ("version", crate_version()),
        ("adapter", "Card \"9\""),
        ("backend", "vulkan"),
        ("driver", "maker"),
        ("driver_info", "1.2.3"),
    ] {
        let refused = refusal(&with(key, "\"other\""));
        assert!(refused.starts_with(&format!("{key} is `other` in the profile, but `{here}` here")), "{refused}");
    }
    // One of another version may have other keys, and is not refused for those.
    assert!(refusal("version = \"0.0.0\"\nkeys = 1").starts_with("version is `0.0.0`"));
    assert!(refusal(&with("adapter", &format!("{:?}", "x".repeat(1 << 20)))).len() < 300);
}

#[test]
fn keys_that_are_unknown_missing_or_of_another_type_are_named() {
    for (text, words) in [
        (String::new(), &["line 1", "missing field `version`"][..]),
        (with("loads", "4\nlanes = 8"), &["line 13, `lanes = 8`: unknown field `lanes`, expected one of", "tile_rows"]),
        (format!("{}colour = 1\n", text()), &["unknown field `colour`"]),
        (text().replace("loads = 4\n", ""), &["missing field `loads`"]),
        (with("loads", "\"four\""), &["`loads = \"four\"`", "invalid type"]),
        (with("scoring", "\"row-lane\""), &["unknown variant `row-lane`", "row-lanes"]),
        (with("loads", "-1"), &["`loads = -1`", "-1"]),
        (with("loads", "4294967296"), &["`loads = 4294967296`"]),
        (with("lane_comm", "\"workgroup+064\""), &["workgroup+064", "workgroup64"]),
        (with("chunk_form", "\"workgroup-tiles064\""), &["workgroup-tiles064", "query-tiles"]),
        (with("lane_comm", "\"subgroup\""), &["lane_comm = \"subgroup\"", "subgroup32"]),
        ("version = ".to_owned(), &["line 1", "`version =`"]),
        ("\u{0}ü\n[".repeat(1000), &["line 1"]),
    ] {
        let refused = refusal(&text);
        words.iter().for_each(|word| assert!(refused.contains(word), "{word}: {refused}"));
        assert!(!refused.contains('\n') && refused.len() < 600, "{refused}");
    }
}

#[test]
fn values_that_are_out_of_range_are_refused_with_the_limit() {
    for (key, value, limit) in [
        ("loads", "0", "from 1 to 16"),
        ("tile_rows", "65", "from 1 to 64"),
        ("subgroups", "3", "a power of two, up to 8"),
        ("tile_tokens", "3", "a power of two, up to 16"),
        ("split_tokens", "0", "from 1 to 2^30"),
        ("chunk_split_tokens", "1073741825", "from 1 to 2^30"),
        ("wide_loads", "true", "SHADER_INT64"),
        ("lane_comm", "\"workgroup48\"", "a power of two"),
        ("lane_comm", "\"subgroup64\"", "sure to have 32 lanes"),
    ] {
        let refused = refusal(&with(key, value));
        let name = value.trim_matches('"').trim_start_matches("workgroup");
        assert!(refused.starts_with(&format!("{key} is {name} in the profile")), "{refused}");
        assert!(refused.contains(limit), "{refused}");
    }
    for value in ["0.0", "-1.0", "nan", "inf"] {
        assert!(refusal(&with("tuned_us", value)).starts_with("tuned_us of `decode 8 × 1024` is "), "{value}");
    }
}

#[test]
fn a_form_that_the_device_was_not_made_for_is_refused() {
    let refused = TunedProfile::from_toml(&text()).unwrap().for_device(&info(), Features::empty(), &Limits::default());
    assert!(refused.unwrap_err().to_string().starts_with("lane_comm is subgroup32 in the profile"));
}

#[test]
fn of_several_the_first_that_fits_is_taken() {
    let (other, fits) = (with("driver_info", "\"1.2.4\""), text());
    let found = |texts: &[&str]| first_for(texts, &info(), Features::SUBGROUP, &Limits::default());
    assert_eq!(found(&[&other, "nonsense", &fits]), read(&fits).ok());
    assert_eq!(found(&[&other]), None);
    assert_eq!(DeviceProfile::shipped(&info(), Features::SUBGROUP, &Limits::default()), None);
    for text in SHIPPED {
        TunedProfile::from_toml(text).expect("what ships was measured with this version");
    }
}

proptest! {
    #[test]
    fn any_numbers_are_taken_as_they_are_or_refused_by_name(
        numbers in prop::collection::vec(prop_oneof![0..70u32, (0..32u32).prop_map(|bits| 1 << bits), any::<u32>()], 6),
        lanes in prop_oneof![0..300u32, (0..32u32).prop_map(|bits| 1 << bits)],
        subgroup: bool,
    ) {
        let mut profile = own();
        let [loads, tile_rows, tile_tokens, split_tokens, chunk_queries, chunk_split_tokens] = numbers[..] else {
            unreachable!()
        };
        profile.lane_comm = if subgroup { LaneComm::Subgroup { lanes } } else { LaneComm::Workgroup { lanes } };
        (profile.loads, profile.tile_rows, profile.tile_tokens) = (loads, tile_rows, tile_tokens);
        profile.split_tokens = split_tokens;
        (profile.chunk_queries, profile.chunk_split_tokens) = (chunk_queries, chunk_split_tokens);
        let file = TunedProfile::new(&info(), &profile, "", Vec::new());
        match read(&file.to_toml()) {
            Ok(read) => prop_assert_eq!(read, profile),
            Err(ProfileError::Spec(error)) => {
                let text = file.to_toml();
                prop_assert!(text.contains(&format!("{} = ", error.option)), "{}", error);
                prop_assert!(error.problem.contains("must be") || error.problem.contains("lanes"), "{}", error);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_text_is_refused_without_a_panic(text in "\\PC{0,200}", cut in 0..1000usize) {
        prop_assert!(read(&text).is_err());
        // Cut before the last number: one with fewer digits is a number still.
        let whole = super::tests::text();
        let end = whole.rfind("tuned_us").expect("the last key");
        let cut: String = whole[..end].chars().take(cut).collect();
        prop_assert!(read(&cut).is_err());
    }
}
