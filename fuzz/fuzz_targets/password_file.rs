//! What a file of password records can hold that others wrote or damaged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use security::password_file::PasswordFile;

fuzz_target!(|input: &[u8]| {
    // Most of an input would be spent on the first line.
    for text in [input, &[b"targe passwords 1\n", input].concat()] {
        let Ok(file) = PasswordFile::parse(text) else { continue };
        let again = file.to_text();
        assert!(again.len() <= PasswordFile::LEN_MAX);
        assert_eq!(PasswordFile::parse(again.as_bytes()).as_ref(), Ok(&file));
        for (user, record) in file.users() {
            assert_eq!(file.answering(user.as_str()), record);
            assert!(security::opaque::is_bearable(&record.cost()));
        }
    }
});
