use super::*;

fn read(text: &str) -> Result<Vec<Request>, TraceError> {
    read_all(text.as_bytes(), "log.csv")
}

fn message(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

const fn request(arrival_s: f64, prompt_tokens: u32, output_tokens: u32) -> Request {
    Request { arrival_s, prompt_tokens, output_tokens }
}

#[test]
fn all_four_forms_are_read() {
    let expected = [request(0.0, 374, 44), request(4.5, 396, 109)];
    for text in [
        "arrival_s,prompt_tokens,output_tokens\n0,374,44\n4.5,396,109\n",
        "arrival_s,prompt_tokens,output_tokens,session,turn,hash_ids\n0,374,44,0,0,0;1-22\n4.5,396,109,1,0,\n",
        "output_tokens,prompt_tokens,arrival_s\n44,374,0\n109,396,4.5\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:51.1805900,396,109\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-12-31 23:59:58+00:00,374,44\n2024-01-01 00:00:02.5+00:00,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n0,ChatGPT,374,44,418,\"Conversation, log\"\n4.5,GPT-4,396,109,505,API log\n",
        "{\"timestamp\": 0, \"input_length\": 374, \"output_length\": 44, \"hash_ids\": [0, 1]}\n{\"timestamp\": 4500, \"input_length\": 396, \"output_length\": 109, \"hash_ids\": []}\n",
    ] {
        let unix = read(text).unwrap();
        assert_eq!(unix, expected, "{text}");
        // Also with a byte order mark, with CRLF, without the last line end, and with empty lines.
        assert_eq!(read(&format!("\u{feff}{text}")).unwrap(), expected, "{text}");
        assert_eq!(read(&text.replace('\n', "\r\n")).unwrap(), expected, "{text}");
        assert_eq!(read(text.trim_end()).unwrap(), expected, "{text}");
        assert_eq!(read(&format!("{}\n  \r\n\n", text.replace('\n', "\n\n"))).unwrap(), expected, "{text}");
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
        ("NaN,1,1", r#"log.csv:2: arrival_s "NaN" is not a finite number of seconds, 0 or later"#),
        ("inf,1,1", r#"log.csv:2: arrival_s "inf" is not a finite number of seconds, 0 or later"#),
        ("-0.5,1,1", r#"log.csv:2: arrival_s "-0.5" is not a finite number of seconds, 0 or later"#),
        ("soon,1,1", r#"log.csv:2: arrival_s "soon" is not a finite number of seconds, 0 or later"#),
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
            r#"log.csv:3: timestamp "-1" is not a finite number of milliseconds, 0 or later"#,
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
        (b"arrival_s,prompt_tokens,output_tokens\n0,1,1\n\"0,1,1\n", 3),
        (b"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\"timestamp\":", 2),
    ] {
        let mut endless = Endless { start, read: 0 };
        let error = read_all(&mut endless, "log.csv").unwrap_err();
        assert!(matches!(error, TraceError::LineTooLong { line: l, .. } if l == line), "{error}");
        assert!(endless.read < MAX_LINE_BYTES + (64 << 10), "{} bytes read", endless.read);
    }
}

#[test]
fn a_quote_left_open_does_not_swallow_the_rest() {
    let mut text = "arrival_s,prompt_tokens,output_tokens\n\"0,1,1\n".to_owned();
    text.push_str(&"0,1,1\n".repeat(MAX_LINE_BYTES / 4));
    let error = read(&text).unwrap_err();
    assert!(matches!(error, TraceError::LineTooLong { .. }), "{error}");
}

#[test]
fn long_but_permitted_lines_are_read() {
    let ids = "1;".repeat(400_000);
    let text = format!("arrival_s,prompt_tokens,output_tokens,hash_ids\n0,1,1,{ids}\n0,2,2,{ids}\n0,3,3,{ids}\n");
    assert_eq!(read(&text).unwrap().len(), 3);
}

#[test]
fn bytes_that_are_no_text_are_refused_where_they_matter() {
    let log = b"arrival_s,prompt_tokens,output_tokens,note\n0,1,1,\xFF\n0,\xFF,1,ok\n";
    let error = read_all(&log[..], "log.csv").unwrap_err();
    assert!(matches!(&error, TraceError::Tokens { line: 3, field: "prompt_tokens", .. }), "{error}");
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
        let mut reader = TraceReader::new(start.as_bytes().chain(Broken), "log.csv").unwrap();
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
    let error = read_file("/nowhere/log.csv").unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/log.csv: "), "{error}");
}

#[test]
fn published_logs_have_their_published_row_counts() {
    let folder = std::env::var_os("PAGED_ATTENTION_TRACES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces"), Into::into);
    for (name, rows, seconds) in [
        ("azure2023_code.csv", 8819, 3436),
        ("azure2023_conv.csv", 19366, 3502),
        ("mooncake_conversation.csv", 12031, 3537),
        ("mooncake_synthetic.csv", 3993, 1022),
        ("sharegpt300_llama31_blk16.csv", 300, 29),
        ("arxiv_summarization.csv", 28257, 28203),
        ("servegen_m_large.csv", 14203, 3600),
        ("servegen_deepseek_r1.csv", 7251, 3600),
        ("sharegpt_first_turn.csv", 16346, 16392),
        ("sharegpt_multiturn_blk16.csv", 13242, 4457),
    ] {
        let path = folder.join(name);
        if !path.exists() {
            println!("skipped: {} is not there (set PAGED_ATTENTION_TRACES)", path.display());
            continue;
        }
        let log = read_file(&path).unwrap();
        assert_eq!(log.len(), rows, "{name}");
        let span = log[rows - 1].arrival_s - log[0].arrival_s;
        assert!((span - f64::from(seconds)).abs() <= 1.0, "{name} spans {span} s");
        let lengths = sequence_lengths(&log, 64, 4096, 1).unwrap();
        assert!(lengths.iter().all(|length| (1..=4096).contains(length)), "{name}");
    }
}
