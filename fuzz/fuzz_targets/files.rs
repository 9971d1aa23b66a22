//! Connection files and kernel specifications that somebody else wrote.
#![no_main]

use std::path::Path;

use jupyter_protocol::kernelspec::{InstalledKernel, KernelSpec, Launch, PythonEnvironment};
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
        let places = spec.argv.len();
        let kernel = InstalledKernel::new("k", "/kernels/k", spec);
        let python = PythonEnvironment::remote("/env/bin/python", "/env", (3, 11));
        let file = Path::new("/run/{prefix}.json");
        for launch in [Launch::new(file), Launch::new(file).with_python(Some(&python))] {
            let arguments = kernel.arguments(&launch).expect("the paths are text");
            assert_eq!(arguments.len(), places, "none is split or lost");
            for (argument, template) in arguments.iter().zip(&kernel.spec.argv).skip(1) {
                // Once, and what was put in is not looked at again.
                let known = template.replace("{connection_file}", "/run/{prefix}.json");
                assert!(template.contains(['{', '}']) || *argument == known);
            }
        }
        if let Ok(variables) = kernel.variables(|name| (name == "HOME").then(|| "${HOME}".to_owned())) {
            assert_eq!(variables.len(), kernel.spec.env.len());
        }
    }
});
