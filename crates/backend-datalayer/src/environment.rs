//! Which environment a sandbox is made from.

use sandbox_core::{Error, ErrorKind, GpuType, Result, SandboxEnvironment};
use serde_json::{Value, json};

use crate::wire::Environment;

/// The environments of a sandbox that names none, as they are called in the versions of the service.
const USUAL: [&str; 2] = ["python-cpu-env", "ai-agents-env"];
/// The same with a GPU.
const USUAL_GPU: [&str; 2] = ["python-gpu-env", "ai-env"];
/// Any GPU.
const ANY: [&str; 2] = ["any", "gpu"];

impl Environment {
    /// How many GPUs it has.
    pub(crate) fn gpus(&self) -> u32 {
        let count =
            |value: &Value| value.as_str().map_or_else(|| value.as_u64(), |text| text.parse().ok());
        let gpus = self.resources.get("nvidia.com/gpu").and_then(count).unwrap_or_default();
        u32::try_from(gpus).unwrap_or(u32::MAX)
    }

    /// The one GPU type that its texts name. None, where they name none or several.
    pub(crate) fn gpu(&self) -> Option<GpuType> {
        if self.gpus() == 0 {
            return None;
        }
        let texts = [Some(&self.name), self.title.as_ref(), self.description.as_ref()];
        let words: Vec<String> = texts.into_iter().flatten().flat_map(|text| words(text)).collect();
        let named =
            |gpu: &GpuType| words.iter().any(|word| word.eq_ignore_ascii_case(gpu.as_str()));
        let mut found = GpuType::ALL.into_iter().filter(named);
        found.next().filter(|_| found.next().is_none())
    }

    /// Credits per second.
    pub(crate) fn rate(&self) -> f64 {
        self.burning_rate.unwrap_or_default()
    }

    /// As it is listed.
    pub(crate) fn listed(&self) -> SandboxEnvironment {
        let resource = |name: &str| self.resources.get(name).map(plain);
        let mut metadata = self.more.clone();
        metadata.insert("resources".into(), Value::Object(self.resources.clone()));
        metadata.insert("credits_per_hour".into(), json!(self.rate() * 3600.0));
        if let Some(description) = &self.description {
            metadata.insert("description".into(), json!(description));
        }
        SandboxEnvironment {
            name: self.name.clone(),
            title: self.title.clone().unwrap_or_else(|| self.name.clone()),
            language: self.language.clone().unwrap_or_else(|| "python".into()),
            owner: self.owner.clone().unwrap_or_default(),
            visibility: self.visibility.clone().unwrap_or_default(),
            burning_rate: self.rate(),
            cpu: resource("cpu"),
            memory: resource("memory"),
            gpu: self.gpu().map(|gpu| gpu.as_str().to_owned()),
            gpu_count: Some(self.gpus()).filter(|count| *count > 0),
            metadata,
        }
    }
}

/// Words with the signs that names of GPUs have.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '-')).map(str::to_owned)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The environment for what is asked.
///
/// # Errors
/// `NotFound` for a name that there is not, naming those there are; `Unsupported` for a GPU that none has.
pub(crate) fn choose<'a>(
    all: &'a [Environment],
    wanted: Option<&str>,
    gpu: Option<&str>,
) -> Result<&'a Environment> {
    let by_name = |name: &str| all.iter().find(|environment| environment.name == name);
    let Some(name) = wanted else {
        return match gpu {
            Some(gpu) => with_gpu(all, gpu),
            None => USUAL
                .into_iter()
                .find_map(by_name)
                .or_else(|| cheapest(all.iter()))
                .ok_or_else(none),
        };
    };
    let found = by_name(name).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            "create",
            format!("environment {name:?} not found (available: {})", names(all.iter())),
        )
    })?;
    match gpu {
        Some(gpu) if !may_have(found, gpu) => {
            let had = match (found.gpus(), found.gpu()) {
                (0, _) => "no GPU".to_owned(),
                (_, Some(own)) => format!("a {own}"),
                (count, None) => format!("{count} GPUs"),
            };
            Err(no_gpu(gpu, &format!("the environment {name:?} has {had}"), all))
        }
        _ => Ok(found),
    }
}

fn with_gpu<'a>(all: &'a [Environment], gpu: &str) -> Result<&'a Environment> {
    let fitting = || all.iter().filter(|environment| may_have(environment, gpu));
    let certain = || fitting().filter(|environment| environment.gpu().is_some());
    let usual = || {
        USUAL_GPU
            .into_iter()
            .find_map(|name| fitting().find(|environment| environment.name == name))
    };
    let any = ANY.iter().any(|name| gpu.eq_ignore_ascii_case(name));
    let certain = if any { None } else { cheapest(certain()) };
    certain
        .or_else(usual)
        .or_else(|| cheapest(fitting()))
        .ok_or_else(|| no_gpu(gpu, "no environment has it", all))
}

/// Whether it has that GPU, or may have: the service does not always tell the type.
fn may_have(environment: &Environment, gpu: &str) -> bool {
    let any = ANY.iter().any(|name| gpu.eq_ignore_ascii_case(name));
    environment.gpus() > 0
        && (any || environment.gpu().is_none_or(|own| own.as_str().eq_ignore_ascii_case(gpu)))
}

fn cheapest<'a>(all: impl Iterator<Item = &'a Environment>) -> Option<&'a Environment> {
    all.min_by(|a, b| a.rate().total_cmp(&b.rate()))
}

fn names<'a>(all: impl Iterator<Item = &'a Environment>) -> String {
    all.map(|environment| environment.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn none() -> Error {
    Error::new(ErrorKind::NotFound, "create", "the account has no environments")
}

fn no_gpu(gpu: &str, why: &str, all: &[Environment]) -> Error {
    let having = names(all.iter().filter(|environment| environment.gpus() > 0));
    let having = if having.is_empty() { "none".to_owned() } else { having };
    Error::unsupported("create", format!("a GPU {gpu:?} cannot be had: {why}"))
        .with_context("field", "gpu")
        .with_hint(format!("environments with GPUs: {having}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environments() -> Vec<Environment> {
        let all = json!([
            {"name": "z-env", "burning_rate": 0.1},
            {"name": "python-cpu-env", "burning_rate": 0.2, "resources": {"cpu": "1.5", "memory": "8Gi"}},
            {"name": "python-gpu-env", "burning_rate": 0.3, "resources": {"nvidia.com/gpu": "1"}},
            {"name": "big", "title": "Two NVIDIA A100-80GB", "burning_rate": 9, "resources": {"nvidia.com/gpu": 2}},
        ]);
        serde_json::from_value(all).unwrap()
    }

    fn chosen(wanted: Option<&str>, gpu: Option<&str>) -> Result<String> {
        choose(&environments(), wanted, gpu).map(|environment| environment.name.clone())
    }

    #[test]
    fn what_is_asked_for_is_chosen() {
        for (wanted, gpu, name) in [
            (None, None, "python-cpu-env"),
            (Some("z-env"), None, "z-env"),
            (None, Some("T4"), "python-gpu-env"),
            (None, Some("any"), "python-gpu-env"),
            (None, Some("a100-80gb"), "big"),
            (Some("python-gpu-env"), Some("A100"), "python-gpu-env"),
            (Some("big"), Some("any"), "big"),
        ] {
            assert_eq!(chosen(wanted, gpu).unwrap(), name, "{wanted:?} {gpu:?}");
        }
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let error = chosen(Some("nope"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("available: z-env, python-cpu-env"), "{error}");
        for (wanted, gpu) in [("python-cpu-env", "T4"), ("big", "T4"), ("big", "A100")] {
            let error = chosen(Some(wanted), Some(gpu)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{wanted} {gpu}");
            assert_eq!(error.hint(), Some("environments with GPUs: python-gpu-env, big"));
        }
        assert!(choose(&[], None, None).is_err());
    }

    #[test]
    fn resources_and_cost_are_listed() {
        let all = environments();
        let listed = all[1].listed();
        assert_eq!((listed.cpu.as_deref(), listed.memory.as_deref()), (Some("1.5"), Some("8Gi")));
        assert_eq!(listed.metadata["credits_per_hour"], json!(720.0));
        let listed = all[3].listed();
        assert_eq!((listed.gpu.as_deref(), listed.gpu_count), (Some("A100-80GB"), Some(2)));
    }
}
