use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use wgpu_paged_attention::testkit::published_log;

use super::*;

fn read_log(bytes: &[u8], skip_bad: bool) -> Result<Log, TraceError> {
    read_all(bytes, "log.csv", &ReadOptions { skip_bad, ..ReadOptions::default() })
}

fn read(text: &str) -> Result<Vec<Request>, TraceError> {
    read_log(text.as_bytes(), false).map(|log| log.requests)
}

fn message(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn request(arrival_s: f64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let arrival_ns = (arrival_s * 1e9).round() as u64;
    Request { arrival_ns, prompt_tokens, output_tokens, ..Request::default() }
}

#[test]
fn all_four_forms_are_read() {
    let expected = [request(0.0, 374, 44), request(4.5, 396, 109)];
    for text in [
        "arrival_s,prompt_tokens,output_tokens\n0,374,44\n4.5,396,109\n",
        "arrival_s,prompt_tokens,output_tokens,session,turn\n0,374,44,0,0\n4.5,396,109,1,0\n",
        "output_tokens,prompt_tokens,arrival_s\n44,374,0\n109,396,4.5\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:51.1805900,396,109\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-12-31 23:59:58+00:00,374,44\n2024-01-01 00:00:02.5+00:00,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n0,ChatGPT,374,44,418,\"Conversation, log\"\n4.5,GPT-4,396,109,505,API log\n",
        "{\"timestamp\": 0, \"input_length\": 374, \"output_length\": 44}\n{\"timestamp\": 4500, \"input_length\": 396, \"output_length\": 109, \"hash_ids\": []}\n",
    ] {
        let unix = read(text).unwrap();
        assert_eq!(unix, expected, "{text}");
        // Also with a byte order mark, with CRLF, without the last line end, and with empty lines.
        assert_eq!(read(&format!("\u{feff}{text}")).unwrap(), expected, "{text}");
        assert_eq!(read(&text.replace('\n', "\r\n")).unwrap(), expected, "{text}");
        assert_eq!(read(text.trim_end()).unwrap(), expected, "{text}");
        assert_eq!(read(&format!("\n{}\n  \r\n\n", text.replace('\n', "\n\n"))).unwrap(), expected, "{text}");
        let old = message(&text.replace('\n', "\r"));
        assert_eq!(old, "log.csv:1: a carriage return within a line; end every line with a line feed", "{text}");
        // And compressed, in several members.
        let (start, end) = text.as_bytes().split_at(text.len() / 2);
        let compressed = [gzip(start), gzip(end)].concat();
        assert_eq!(read_log(&compressed, false).unwrap().requests, expected, "{text}");
    }
}

#[test]
fn refusals_name_file_line_field_and_value() {
    const HEADER: &str = "arrival_s,prompt_tokens,output_tokens\n";
    for (rows, expected) in [
        ("0,1,1\n0,-3,1\n", r#"log.csv:3: prompt_tokens "-3" is not a whole number from 0 to 4294967295"#),
        ("0,1,1.5\n", r#"log.csv:2: output_tokens "1.5" is not a whole number from 0 to 4294967295"#),
        ("0,1,many", r#"log.csv:2: output_tokens "many" is not a whole number from 0 to 4294967295"#),
        ("0,4294967296,1", r#"log.csv:2: prompt_tokens "4294967296" is not a whole number from 0 to 4294967295"#),
        ("0,,1", r#"log.csv:2: prompt_tokens "" is not a whole number from 0 to 4294967295"#),
        ("NaN,1,1", r#"log.csv:2: arrival_s "NaN" is not a finite number, 0 or later"#),
        ("inf,1,1", r#"log.csv:2: arrival_s "inf" is not a finite number, 0 or later"#),
        ("-0.5,1,1", r#"log.csv:2: arrival_s "-0.5" is not a finite number, 0 or later"#),
        ("soon,1,1", r#"log.csv:2: arrival_s "soon" is not a finite number, 0 or later"#),
        ("1,1,1\n0.5,1,1", r#"log.csv:3: arrival_s "0.5" is earlier than the line before; sort the log by arrival"#),
        ("0,1,1\n\n\n0,1\n0,1,1", "log.csv:5: 2 fields under a header of 3"),
        ("0,1,1,9", "log.csv:2: 4 fields under a header of 3"),
        ("", "log.csv: no requests in it"),
    ] {
        assert_eq!(message(&format!("{HEADER}{rows}")), expected);
        let windows = format!("\u{feff}{HEADER}{rows}").replace('\n', "\r\n");
        assert_eq!(message(&windows), expected, "with CRLF");
    }
}

#[test]
fn refusals_of_headers_say_what_is_missing() {
    for (text, expected) in [
        ("", "log.csv: no requests in it"),
        ("\u{feff}", "log.csv: no requests in it"),
        ("\n\n", "log.csv: no requests in it"),
        (
            "\n\na,b\n0,1\n",
            "log.csv:3: unknown header \"a,b\"; expected arrival_s,prompt_tokens,output_tokens or the header of an Azure or BurstGPT trace, or JSON lines of Mooncake",
        ),
        ("arrival_s,prompt_tokens\n0,1\n", r#"log.csv:1: no column "output_tokens""#),
        ("ContextTokens,GeneratedTokens\n1,1\n", r#"log.csv:1: no column "TIMESTAMP""#),
        ("Timestamp,Model,Response tokens\n1,a,1\n", r#"log.csv:1: no column "Request tokens""#),
    ] {
        assert_eq!(message(text), expected);
    }
    let text = message("time,tokens\n0,1\n");
    assert!(text.starts_with(r#"log.csv:1: unknown header "time,tokens"; expected arrival_s,"#), "{text}");
}

#[test]
fn refusals_of_native_forms_name_their_own_fields() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    for (text, expected) in [
        (
            format!("{azure}2023-13-01 00:00:00,1,1"),
            r#"log.csv:2: TIMESTAMP "2023-13-01 00:00:00" is not a date and time like 2023-11-16 18:17:03.97996"#,
        ),
        (
            format!("{azure}2023-11-16 18:00:00,1,1\n2023-11-16 17:59:59.9,1,1"),
            r#"log.csv:3: TIMESTAMP "2023-11-16 17:59:59.9" is earlier than the line before; sort the log by arrival"#,
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1}".to_owned(),
            r#"log.csv:1: no column "output_length""#,
        ),
        (
            "{\"timestamp\": 0, \"input_length\": \"1\", \"output_length\": 1}".to_owned(),
            r#"log.csv:1: input_length "\"1\"" is not a whole number from 0 to 4294967295"#,
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n\n{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}".to_owned(),
            r#"log.csv:3: timestamp "-1" is not a finite number, 0 or later"#,
        ),
    ] {
        assert_eq!(message(&text), expected);
    }
    let text = message("{\"timestamp\": 0,\n");
    assert!(text.starts_with("log.csv:1: not a JSON object: "), "{text}");
}

/// Bytes without end, with a count of how many were asked for.
struct Endless {
    start: &'static [u8],
    read: usize,
}

impl Read for &mut Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let head = buffer.len().min(self.start.len());
        buffer[..head].copy_from_slice(&self.start[..head]);
        buffer[head..].fill(b'7');
        self.start = &self.start[head..];
        self.read += buffer.len();
        Ok(buffer.len())
    }
}

#[test]
fn a_line_without_end_is_not_swallowed() {
    for (start, line) in [
        (&b""[..], 1),
        (b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n", 3),
        (b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n\"0,1,1", 3),
        (b"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\"timestamp\":", 2),
    ] {
        let mut endless = Endless { start, read: 0 };
        let error = read_all(&mut endless, "log.csv", &ReadOptions::default()).unwrap_err();
        assert!(matches!(error.problem, Problem::LineTooLong) && error.line == Some(line), "{error}");
        assert!(endless.read < MAX_LINE_BYTES + (64 << 10), "{} bytes read", endless.read);
    }
}

#[test]
fn a_line_that_is_too_long_can_be_left_out_compressed_or_not() {
    let mut text = b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n".to_vec();
    text.resize(text.len() + 40 * MAX_LINE_BYTES, b'7');
    text.extend(b"\n1,2,2\n");
    let compressed = gzip(&text);
    assert!(compressed.len() < text.len() / 500);
    for bytes in [&text, &compressed] {
        let error = read_log(bytes, false).unwrap_err().to_string();
        assert_eq!(error, "log.csv:3: a line longer than 1048576 bytes");
        let log = read_log(bytes, true).unwrap();
        assert_eq!((log.requests, log.skipped), (vec![request(0.0, 1, 1), request(1.0, 2, 2)], 1));
    }
}

#[test]
fn a_quote_left_open_does_not_swallow_the_rest() {
    let text = "arrival_s,prompt_tokens,output_tokens\n\"0,1,1\n0,2,2\n";
    assert_eq!(message(text), "log.csv:2: a quote that is not closed; a row is one line");
    let log = read_log(text.as_bytes(), true).unwrap();
    assert_eq!((log.requests, log.skipped), (vec![request(0.0, 2, 2)], 1));
}

#[test]
fn bad_rows_are_left_out_and_counted_on_request() {
    let table = "arrival_s,prompt_tokens,output_tokens,hash_ids\n\
        5,many,1,\n1,32,1,0-1\n2,32,1\n-1,32,1,\n0.5,32,1,\n2,32,x,\n2,32,1,b\n2,32,1,0-99\n3,48,1,0-2\n";
    let log = read_log(table.as_bytes(), true).unwrap();
    assert_eq!(log.skipped, 7);
    assert_eq!(log.requests.iter().map(|request| request.arrival_ns).collect::<Vec<_>>(), [0, 2_000_000_000]);
    assert_eq!(log.tokens_per_id, Some(16));

    let row = |time: &str| format!("{{\"timestamp\": {time}, \"input_length\": 1, \"output_length\": 1}}\n");
    let json = format!("{{\n{}{{}}\nnull\n{}{}", row("1000"), row("900"), row("2000"));
    let log = read_log(json.as_bytes(), true).unwrap();
    assert_eq!((log.requests, log.skipped), (vec![request(0.0, 1, 1), request(1.0, 1, 1)], 4));

    // The clock starts with the first row that is read.
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,x,1\n2023-01-02 00:00:00,1,1\n";
    assert_eq!(read_log(azure.as_bytes(), true).unwrap().requests, [request(0.0, 1, 1)]);

    let error = read_log(b"arrival_s,prompt_tokens,output_tokens\n0\n1\n", true).unwrap_err().to_string();
    assert_eq!(error, "log.csv: no requests in it but 2 bad rows, which were left out");
    for fatal in ["a,b\n1,2\n", "arrival_s,prompt_tokens\n0,1\n"] {
        assert!(read_log(fatal.as_bytes(), true).is_err(), "{fatal}");
    }
}

#[test]
fn damaged_gzip_data_is_an_error_with_the_line_that_was_reached() {
    let mut text = "arrival_s,prompt_tokens,output_tokens\n".to_owned();
    (0..20_000).for_each(|row| text.push_str(&format!("{row},{},{}\n", row * 7919 % 4096, row * 104_729 % 512)));
    let whole = gzip(text.as_bytes());
    assert_eq!(read_log(&whole, false).unwrap().requests.len(), 20_000);
    let reached = |bytes: &[u8], skip_bad| match read_log(bytes, skip_bad).unwrap_err() {
        error @ TraceError { line: Some(line), problem: Problem::Gzip(_), .. } => {
            let text = error.to_string();
            assert!(text.starts_with(&format!("log.csv:{line}: damaged or truncated gzip data: ")), "{text}");
            line
        }
        error => panic!("{error}"),
    };
    for skip_bad in [false, true] {
        // Without the half, without the checksum, without anything but the magic bytes.
        assert!((5_000..15_000).contains(&reached(&whole[..whole.len() / 2], skip_bad)));
        assert!(reached(&whole[..whole.len() - 4], skip_bad) > 15_000);
        assert_eq!(reached(&whole[..2], skip_bad), 1);
        // What was decoded differs from what was compressed, by the checksum.
        let mut damaged = whole.clone();
        damaged[whole.len() - 6] ^= 1;
        assert!(reached(&damaged, skip_bad) > 15_000);
        assert!(reached(&[&whole[..], b"garbage behind it"].concat(), skip_bad) > 15_000);
    }
}

fn ids(log: &Log) -> Vec<Vec<u64>> {
    log.requests.iter().map(|request| request.prefix.iter().collect()).collect()
}

#[test]
fn ids_come_from_tables_and_json() {
    let table = "arrival_s,prompt_tokens,output_tokens,hash_ids\n0,40,1,0;5-6\n0,33,1,0;5;7\n1,3,1,\n";
    let log = read_log(table.as_bytes(), false).unwrap();
    assert_eq!((ids(&log), log.tokens_per_id), (vec![vec![0, 5, 6], vec![0, 5, 7], vec![]], Some(16)));

    let json = "{\"timestamp\":0,\"input_length\":1025,\"output_length\":1,\"hash_ids\":[4,5,9]}\n";
    let log = read_log(json.as_bytes(), false).unwrap();
    assert_eq!((ids(&log), log.tokens_per_id), (vec![vec![4, 5, 9]], Some(512)));

    let given = ReadOptions { tokens_per_id: Some(400), ..ReadOptions::default() };
    assert_eq!(read_all(json.as_bytes(), "log", &given).unwrap().tokens_per_id, Some(400));
    assert_eq!(read_log(b"arrival_s,prompt_tokens,output_tokens\n0,40,1\n", false).unwrap().tokens_per_id, None);
}

#[test]
fn bad_ids_are_refused_with_line_field_and_value() {
    let table = |ids: &str| format!("arrival_s,prompt_tokens,output_tokens,hash_ids\n0,40,1,{ids}\n");
    let json = |ids: &str| format!("{{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":{ids}}}\n");
    for (text, expected) in [
        (table("1;x;2"), r#"log.csv:2: hash_ids "x" is not an id or a range like 14-27"#),
        (table("9-1"), r#"log.csv:2: hash_ids "9-1" is not an id or a range like 14-27"#),
        (
            table("0-18446744073709551615"),
            "log.csv:2: hash_ids has 18446744073709551615 ids, but a prompt of 40 tokens has at most 40",
        ),
        (json("[1,-2]"), r#"log.csv:1: hash_ids "-2" is not a whole number from 0"#),
        (json("[1.5]"), r#"log.csv:1: hash_ids "1.5" is not a whole number from 0"#),
        (json("7"), r#"log.csv:1: hash_ids "7" is not a list of ids"#),
        (
            json("[1,2,3]"),
            "log.csv:1: hash_ids has 3 ids, but a prompt of 513 tokens has at most 2 of 512 tokens; --tokens-per-id says how many an id stands for",
        ),
    ] {
        assert_eq!(message(&text), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(
        header in prop::sample::select(vec![
            "",
            "arrival_s,prompt_tokens,output_tokens,hash_ids\n",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "Timestamp,Request tokens,Response tokens\n",
            "{\"timestamp\":",
            "\u{1f}",
        ]),
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..12),
                "[0-9,;\"{}\\[\\]:.e-]{0,12}".prop_map(String::into_bytes),
                Just(b"0,9,1,0-18446744073709551615\n".to_vec()),
                Just(b"\n".to_vec()),
            ],
            0..40,
        ),
        compressed in any::<bool>(),
        skip_bad in any::<bool>(),
    ) {
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(pieces.concat());
        if compressed {
            bytes = gzip(&bytes);
            // Some of them damaged.
            if bytes.len().is_multiple_of(3) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x10;
            }
        }
        match read_log(&bytes, skip_bad) {
            Ok(log) => {
                prop_assert!(log.requests.is_sorted_by(|a, b| a.arrival_ns <= b.arrival_ns));
                for request in log.requests {
                    prop_assert!(request.prefix.len() <= request.prompt_tokens.into());
                }
            }
            Err(error) => prop_assert!(error.to_string().starts_with("log.csv:")),
        }
    }
}

#[test]
fn long_but_permitted_lines_are_read() {
    let note = "1;".repeat(400_000);
    let text = format!("arrival_s,prompt_tokens,output_tokens,note\n0,1,1,{note}\n0,2,2,{note}\n0,3,3,{note}\n");
    assert_eq!(read(&text).unwrap().len(), 3);
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_matter() {
    let log = b"arrival_s,prompt_tokens,output_tokens,note\n0,1,1,\xFF\n0,\xFF,1,ok\n";
    let error = read_log(log, false).unwrap_err();
    assert!(error.line == Some(3) && error.to_string().contains("prompt_tokens"), "{error}");
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("unplugged"))
    }
}

#[test]
fn a_failed_read_is_the_last_thing_a_reader_gives() {
    for start in [
        "arrival_s,prompt_tokens,output_tokens\n0,1,1\n \r\n",
        "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n \r\n",
    ] {
        let mut reader = TraceReader::new(start.as_bytes().chain(Broken), "log.csv", &ReadOptions::default()).unwrap();
        let mut last = reader.next();
        // The failure may come with the read-ahead, before the requests in front of it are handed out.
        while let Some(Ok(_)) = last {
            last = reader.next();
        }
        let error = last.unwrap().unwrap_err().to_string();
        assert_eq!(error, "log.csv: unplugged");
        assert!(reader.next().is_none());
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = read_file("/nowhere/log.csv", &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/log.csv: "), "{error}");
}

#[test]
fn published_logs_have_their_published_row_counts() {
    for (name, rows, seconds, tokens_per_id) in [
        ("azure2023_code.csv", 8819, 3436, None),
        ("azure2023_conv.csv", 19366, 3502, None),
        ("mooncake_conversation.csv", 12031, 3537, Some(512)),
        ("mooncake_synthetic.csv", 3993, 1022, Some(512)),
        ("sharegpt300_llama31_blk16.csv", 300, 29, Some(16)),
        ("arxiv_summarization.csv", 28257, 28203, None),
        ("servegen_m_large.csv", 14203, 3600, None),
        ("servegen_deepseek_r1.csv", 7251, 3600, None),
        ("sharegpt_first_turn.csv", 16346, 16392, None),
        ("sharegpt_multiturn_blk16.csv", 13242, 4457, Some(16)),
    ] {
        let Some(path) = published_log(name) else { continue };
        let log = read_file(&path, &ReadOptions::default()).unwrap();
        assert_eq!((&*log.name, log.skipped, log.tokens_per_id), (name, 0, tokens_per_id));
        let log = log.requests;
        assert_eq!(log.len(), rows, "{name}");
        let span = log[rows - 1].arrival_ns as f64 / 1e9;
        assert!((span - f64::from(seconds)).abs() <= 1.0, "{name} spans {span} s");
        let lengths = sequence_lengths(&log, 64, 4096, 1).unwrap();
        assert!(lengths.iter().all(|length| (1..=4096).contains(length)), "{name}");
    }
}

/// Sixty-four requests of 1,000 tokens in the fields of Mooncake, the times written by `time` and `more` fields behind.
fn json_log(time: impl Fn(u32) -> String, more: &str) -> String {
    let row = |i| {
        let time = time(i);
        format!("{{\"timestamp\": {time}, \"input_length\": 900, \"output_length\": 100{more}}}\n")
    };
    (0..64).map(row).collect()
}

#[test]
fn x01_the_unit_is_found_in_names_fractions_dates_and_load() {
    use TimeUnit::{Date, Ms, Ns, S, Us};
    let found = |text: &str| {
        let log = read_log(text.as_bytes(), false).unwrap();
        let (unit, by) = log.time.unwrap();
        (unit, by, log.requests.last().unwrap().arrival_ns)
    };
    let s = 1_000_000_000;
    for (text, unit, by, last_ns) in [
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n2,1,1\n".to_owned(), S, "the name of arrival_s", 2 * s),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1,1\n".to_owned(),
            Date,
            "TIMESTAMP holds dates",
            0,
        ),
        ("Timestamp,Request tokens,Response tokens\n5,1,1\n7,1,1\n".to_owned(), S, "as such logs are published", 2 * s),
        // Five requests a second, 5,000 tokens: whole numbers of every unit, and those of a Qwen-Bailian trace.
        (json_log(|i| (200 * i).to_string(), ""), Ms, "as such logs are published", 12_600_000_000),
        (json_log(|i| format!("{}.25", 200 * i), ""), Ms, "as such logs are published", 12_600_000_000),
        (json_log(|i| i.to_string(), ""), S, "in ms it would be 1000.000 arrivals", 63 * s),
        (json_log(|i| format!("{}.2", i), ""), S, "in ms it would be 1000.000 arrivals", 63 * s),
        (json_log(|i| (3 * i).to_string(), ", \"chat_id\": 5"), S, "the field chat_id", 189 * s),
        // Unix times, of which the first is enough.
        (json_log(|i| (1_700_000_000 + i).to_string(), ""), S, "is the Unix time of a date", 63 * s),
        (json_log(|i| format!("17000000000{:02}", i), ""), Ms, "is the Unix time of a date", 63_000_000),
        (json_log(|i| format!("17000000000000{:02}", i), ""), Us, "is the Unix time of a date", 63_000),
        (json_log(|i| format!("17000000000000000{:02}", i), ""), Ns, "is the Unix time of a date", 63),
    ] {
        let (found_unit, found_by, found_last) = found(&text);
        assert_eq!((found_unit, found_last), (unit, last_ns), "{found_by}\n{text}");
        assert!(found_by.contains(by), "{found_by}: {by}");
    }
}

#[test]
fn x01_weak_evidence_is_a_warning() {
    use TimeUnit::{Ms, S, Us};
    let burst = |step: u32| {
        let row = |i| format!("{},1000,600\n", step * i);
        "Timestamp,Request tokens,Response tokens\n".to_owned() + &(0..40).map(row).collect::<String>()
    };
    let chat = ", \"chat_id\": 5";
    for (text, unit, other) in [
        // Every 20 s, if these are seconds; they may be milliseconds of a burst.
        (json_log(|i| (20 * i).to_string(), ""), Ms, Some(S)),
        (json_log(|i| (5 * i).to_string(), ""), Ms, Some(S)),
        (json_log(|i| (200_000 * i).to_string(), ""), Ms, Some(Us)),
        (json_log(|i| format!("{}.5", 1000 * i), ""), Ms, Some(S)),
        (json_log(|i| format!("{}.5", 1000 * i), chat), S, Some(Ms)),
        (json_log(|i| (1000 * i).to_string(), chat), S, Some(Ms)),
        (burst(100), S, None),
        (burst(2000), S, Some(Ms)),
        (burst(200_000), S, Some(Us)),
        (json_log(|i| (1000 * i).to_string(), ""), Ms, None),
        (json_log(|i| (20 * i).to_string(), chat), S, None),
        (json_log(|i| format!("{i}.5"), chat), S, None),
        (json_log(|_| "0.5".to_owned(), ""), Ms, None),
    ] {
        let log = read_log(text.as_bytes(), false).unwrap();
        assert_eq!(log.time.unwrap().0, unit, "{text}");
        let doubt = log.time_doubt.unwrap_or_default();
        assert_eq!(!doubt.is_empty(), other.is_some(), "{doubt}\n{text}");
        for reading in other.into_iter().flat_map(|other| [unit, other]) {
            assert!(doubt.contains(&format!("in {} it would be ", reading.name())), "{doubt}");
            assert!(doubt.contains("--time-unit"), "{doubt}");
        }
    }
}

#[test]
fn x01_requests_that_come_at_once_are_a_load() {
    let overload = |rows: usize| {
        let rows = "0,100,10\n".repeat(rows);
        let text = format!("arrival_s,prompt_tokens,output_tokens\n{rows}");
        read_log(text.as_bytes(), false).unwrap().overload()
    };
    assert_eq!(overload(3000), Some((2999.0, 330_000.0)));
    assert_eq!(overload(1000), None);
}

#[test]
fn x01_a_unit_that_was_asked_for_is_taken() {
    let text = json_log(|i| i.to_string(), ", \"chat_id\": 5");
    for (unit, last_ns) in
        [(TimeUnit::S, 63_000_000_000), (TimeUnit::Ms, 63_000_000), (TimeUnit::Us, 63_000), (TimeUnit::Ns, 63)]
    {
        let options = ReadOptions { time_unit: Some(unit), ..ReadOptions::default() };
        let log = read_all(text.as_bytes(), "log", &options).unwrap();
        assert_eq!(log.requests[63].arrival_ns, last_ns);
        assert_eq!(log.time, Some((unit, "--time-unit".to_owned())));
        // 64 requests a minute are a load; a thousand times as fast, none that a device serves.
        assert_eq!(log.overload().is_some(), unit != TimeUnit::S, "{unit:?}");
    }
    let dates = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1,1\n";
    let options = ReadOptions { time_unit: Some(TimeUnit::Ms), ..ReadOptions::default() };
    let error = read_all(dates.as_bytes(), "log", &options).unwrap_err().to_string();
    assert_eq!(error, "log: TIMESTAMP holds dates, so --time-unit has no effect; leave it out");
}

#[test]
fn x01_the_ids_of_a_bailian_trace_stand_for_16_tokens() {
    let text = json_log(|i| i.to_string(), ", \"chat_id\": 5, \"hash_ids\": [1, 2, 3]");
    assert_eq!(read_log(text.as_bytes(), false).unwrap().tokens_per_id, Some(16));
}

#[test]
fn x09_dates_are_instants() {
    let seconds = |rows: &[&str]| {
        let rows: String = rows.iter().map(|time| format!("{time},1,1\n")).collect();
        let log = read(&format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"));
        log.map(|requests| requests.iter().map(|request| request.arrival_ns as f64 / 1e9).collect::<Vec<_>>())
    };
    let day = |time: &str| format!("2024-05-01 {time}");
    let times = |times: &[&str]| {
        seconds(&times.iter().map(|time| day(time)).collect::<Vec<_>>().iter().map(|t| &**t).collect::<Vec<_>>())
    };
    assert_eq!(times(&["00:00:00+00:00", "01:00:00+01:00", "02:00:01+02:00"]).unwrap(), [0.0, 0.0, 1.0]);
    assert_eq!(times(&["00:00:00Z", "00:00:00.25z", "01:00:01+01:00"]).unwrap(), [0.0, 0.25, 1.0]);
    assert_eq!(times(&["00:00:00", "00:00:00.123456789"]).unwrap(), [0.0, 0.123_456_789]);
    assert_eq!(seconds(&["2023-12-31T23:59:59-00:30", "2024-01-01T00:30:00Z"]).unwrap(), [0.0, 1.0]);
    assert_eq!(seconds(&["1969-12-31 23:59:59", "1970-01-01 00:00:00"]).unwrap(), [0.0, 1.0]);
    for (rows, expected) in [
        (
            ["00:00:00", "00:00:01Z"],
            r#"log.csv:3: TIMESTAMP "2024-05-01 00:00:01Z" has an offset, unlike the rows above; give all times or none an offset"#,
        ),
        (
            ["00:00:00Z", "00:00:01"],
            r#"log.csv:3: TIMESTAMP "2024-05-01 00:00:01" has no offset, unlike the rows above; give all times or none an offset"#,
        ),
        // An instant, not what the clock on the wall shows, is earlier.
        (
            ["00:00:00Z", "00:30:00+01:00"],
            r#"log.csv:3: TIMESTAMP "2024-05-01 00:30:00+01:00" is earlier than the line before; sort the log by arrival"#,
        ),
        (
            ["00:00:00Z", "00:00:00+99:00"],
            r#"log.csv:3: TIMESTAMP "2024-05-01 00:00:00+99:00" is not a date and time like 2023-11-16 18:17:03.97996"#,
        ),
        (
            ["00:00:00Z", "00:00:00[Europe/Berlin]"],
            r#"log.csv:3: TIMESTAMP "2024-05-01 00:00:00[Europe/Berlin]" is not a date and time with an offset; give one, or Z, in place of the zone in brackets"#,
        ),
    ] {
        assert_eq!(times(&rows).unwrap_err().to_string(), expected);
    }
    let error = seconds(&["2024-05-01 00:00:00", "9024-05-01 00:00:00"]).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"log.csv:3: TIMESTAMP "9024-05-01 00:00:00" is later than 292 years after the first; correct the date"#
    );
}

#[test]
fn x18_times_are_exact_and_have_a_limit() {
    let last_ns = |text: &str| read(text).unwrap().last().unwrap().arrival_ns;
    const HEADER: &str = "arrival_s,prompt_tokens,output_tokens\n";
    assert_eq!(last_ns(&format!("{HEADER}1700000000.000000001,1,1\n1700000000.000000256,1,1\n")), 255);
    let json = |time: &str| format!("{{\"timestamp\": {time}, \"input_length\": 1, \"output_length\": 1}}\n");
    assert_eq!(last_ns(&(json("1700000000000000001") + &json("1700000000000000256"))), 255);
    assert_eq!(last_ns(&(json("1700000000.000000001") + &json("1700000000.000000256"))), 255);
    let unit = "give the unit of the log's times with --time-unit";
    for (time, remedy) in [("1e308", "correct the time"), ("9223372037", unit), ("1700000000000", unit)] {
        let text = format!("arrival_s {time:?} is later than 9223372036 s, which is 292 years; {remedy}");
        assert_eq!(message(&format!("{HEADER}0,1,1\n{time},1,1\n")), format!("log.csv:3: {text}"));
        let log = read_log(format!("{HEADER}0,1,1\n{time},1,1\n1,1,1\n").as_bytes(), true).unwrap();
        assert_eq!((log.requests.len(), log.skipped), (2, 1), "holds up no row after it");
    }
    // Where lengths alone matter, so does no unit.
    let milliseconds = format!("{HEADER}1700000000000,1,1\n1700000000001,1,1\n");
    assert_eq!(read_all(milliseconds.as_bytes(), "log", &ReadOptions::LENGTHS).unwrap().requests.len(), 2);
    assert!(message(&json("1e19")).starts_with(r#"log.csv:1: timestamp "1e19" is later than 9223372036854 ms"#));
    let text = message(&(json("0.5") + &json("1e16")));
    assert!(text.starts_with(r#"log.csv: timestamp "10000000000000000" is later than 9223372036854 ms"#), "{text}");
    assert!(text.ends_with(unit), "{text}");
}

#[test]
fn x17_a_command_without_time_unit_does_not_ask_for_it() {
    let text = "arrival_s,prompt_tokens,output_tokens\n0,1,1\n1e308,1,1\n";
    let error = read_all(text.as_bytes(), "log", &ReadOptions::LENGTHS).unwrap_err().to_string();
    let expected = "arrival_s \"1e308\" is later than 9223372036 s, which is 292 years; correct the time";
    assert_eq!(error, format!("log:3: {expected}"));
}
