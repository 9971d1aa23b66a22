//! Connection files and kernel specifications that somebody else wrote.
#![no_main]

use jupyter_protocol::kernelspec::KernelSpec;
use jupyter_protocol::{Channel, ConnectionInfo};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(info) = ConnectionInfo::from_json(bytes) {
        let text = info.to_json().expect("it came as text");
        assert_eq!(ConnectionInfo::from_json(&text).expect("it was read before"), info);
        let shown = format!("{info:?}");
        let key = String::from_utf8_lossy(info.key.expose()).into_owned();
        assert!(key.len() < 40 || !shown.contains(&key), "the key is not shown");
        for channel in Channel::MESSAGES {
            let _ = info.endpoint(channel).to_string();
        }
    }
    if let Ok(spec) = KernelSpec::from_json(bytes) {
        let _ = (spec.provisioner(), spec.supports_curve());
    }
});
