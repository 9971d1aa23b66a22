//! What a sandbox shall be like. Secrets travel as they are: a connection is as private as the process behind it.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_core::{
    ByteSize, CreateSpec, IsolationMode, Mount, NetworkPolicy, Secret, SingleUse, Tags,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

macro_rules! spec {
    ($($name:ident: $kind:ty,)*) => {
        /// [`CreateSpec`] without what needs a conversion.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub(crate) struct WireSpec {
            $(#[serde(default)] $name: $kind,)*
            #[serde(default)]
            secrets: BTreeMap<String, String>,
        }

        impl From<CreateSpec> for WireSpec {
            fn from(spec: CreateSpec) -> Self {
                let exposed = |(name, secret): (String, Secret)| (name, secret.expose().to_owned());
                let secrets = spec.secrets.into_iter().map(exposed).collect();
                Self { $($name: spec.$name,)* secrets }
            }
        }

        impl From<WireSpec> for CreateSpec {
            fn from(wire: WireSpec) -> Self {
                let mut spec = Self::default();
                $(spec.$name = wire.$name;)*
                let hidden = |(name, value)| (name, Secret::new(value));
                spec.secrets = wire.secrets.into_iter().map(hidden).collect();
                spec
            }
        }

        #[cfg(test)]
        const FIELDS: &[&str] = &[$(stringify!($name),)* "secrets"];
    };
}

spec! {
    name: Option<String>,
    environment: Option<String>,
    image: Option<String>,
    working_dir: Option<String>,
    env: BTreeMap<String, String>,
    tags: Tags,
    memory: Option<ByteSize>,
    cpu: Option<f64>,
    disk: Option<ByteSize>,
    processes: Option<u32>,
    disk_files: Option<u64>,
    open_files: Option<u32>,
    output_limit: Option<ByteSize>,
    gpu: Option<String>,
    network: NetworkPolicy,
    isolation: IsolationMode,
    mounts: Vec<Mount>,
    lifetime: Option<Duration>,
    idle_timeout: Option<Duration>,
    snapshot: Option<String>,
    detached: Option<Duration>,
    single_use: Option<SingleUse>,
    provider_options: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::message::{json, parse};
    use crate::wire::request::tests::fields;

    #[test]
    fn specs_come_out_as_they_went_in() {
        let mut spec = CreateSpec::default();
        spec.name = Some("n".into());
        spec.env = [("A".into(), "1".into())].into();
        spec.secrets = [("TOKEN".into(), Secret::new("hunter2"))].into();
        spec.memory = Some(ByteSize::mib(64));
        spec.cpu = Some(0.1);
        spec.network = NetworkPolicy::allowlist(["*.example.com:443"]).unwrap();
        spec.mounts = vec![Mount::new("/srv", "/data").writable()];
        spec.lifetime = Some(Duration::from_nanos(1_000_000_001));
        spec.single_use = Some(SingleUse::Code);
        spec.provider_options = Map::from_iter([("python".into(), Value::from("x"))]);
        let found: WireSpec = parse(&json(&WireSpec::from(spec.clone()))).unwrap();
        assert_eq!(CreateSpec::from(found), spec);
    }

    #[test]
    fn no_field_is_forgotten() {
        let travel: BTreeSet<_> = FIELDS.iter().map(|field| (*field).to_owned()).collect();
        assert_eq!(travel, fields(&CreateSpec::default()));
    }
}
