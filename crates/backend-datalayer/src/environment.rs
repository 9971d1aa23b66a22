//! Chooses the environment of a sandbox.

use sandbox_core::{Error, ErrorKind, GpuType, Result, SandboxEnvironment};
use serde_json::{Value, json};

use crate::resources::{Size, is_any_gpu};
use crate::wire::Environment;

/// Environments of a sandbox that names none, by their names in the versions of the service.
const DEFAULT: [&str; 2] = ["python-cpu-env", "ai-agents-env"];
/// The same with a GPU.
const DEFAULT_WITH_GPU: [&str; 2] = ["python-gpu-env", "ai-env"];

impl Environment {
    /// Returns the price, in credits per second.
    pub(crate) fn rate(&self) -> f64 {
        self.burning_rate.unwrap_or_default()
    }

    /// Returns the environment as the core lists it.
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

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the environment for a request.
///
/// # Errors
/// `NotFound` for an unknown name, listing the known ones; `Unsupported` for a GPU or a size that no environment has.
pub(crate) fn choose<'a>(
    all: &'a [Environment],
    wanted: Option<&str>,
    gpu: Option<&str>,
    size: Size,
) -> Result<&'a Environment> {
    let found = match wanted {
        Some(name) => vec![with_name(all, name, gpu)?],
        None => having(all, gpu)?,
    };
    let fitting: Vec<_> = found.iter().copied().filter(|one| size.matches(one)).collect();
    preferred(&fitting, gpu).ok_or_else(|| no_size(size, &found))
}

fn with_name<'a>(all: &'a [Environment], name: &str, gpu: Option<&str>) -> Result<&'a Environment> {
    let found = all.iter().find(|environment| environment.name == name).ok_or_else(|| {
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

/// Returns all environments with that GPU. Where none is asked for, those without one are preferred: a GPU costs many times as
/// much.
fn having<'a>(all: &'a [Environment], gpu: Option<&str>) -> Result<Vec<&'a Environment>> {
    let with = |fits: &dyn Fn(&Environment) -> bool| -> Vec<&'a Environment> {
        all.iter().filter(|one| fits(one)).collect()
    };
    let found = match gpu {
        Some(gpu) => with(&|one| may_have(one, gpu)),
        None if all.iter().any(|one| one.gpus() == 0) => with(&|one| one.gpus() == 0),
        None => with(&|_| true),
    };
    if found.is_empty() {
        return Err(gpu.map_or_else(none, |gpu| no_gpu(gpu, "no environment has it", all)));
    }
    Ok(found)
}

/// Returns the environment that certainly has the GPU, or is a default one, or costs least.
fn preferred<'a>(fitting: &[&'a Environment], gpu: Option<&str>) -> Option<&'a Environment> {
    let certain = || fitting.iter().copied().filter(|one| one.gpu().is_some());
    let defaults = if gpu.is_some() { DEFAULT_WITH_GPU } else { DEFAULT };
    let named = |name| fitting.iter().copied().find(|one| one.name == name);
    gpu.filter(|gpu| !is_any_gpu(gpu))
        .and_then(|_| cheapest(certain()))
        .or_else(|| defaults.into_iter().find_map(named))
        .or_else(|| cheapest(fitting.iter().copied()))
}

/// Returns true for an environment that has that GPU or may have it: the service does not always tell the type. Unknown types
/// are no GPUs.
fn may_have(environment: &Environment, gpu: &str) -> bool {
    let is_known = || gpu.parse::<GpuType>().is_ok();
    let has = match environment.gpu() {
        Some(own) => own.as_str().eq_ignore_ascii_case(gpu),
        None => is_known(),
    };
    environment.gpus() > 0 && (is_any_gpu(gpu) || has)
}

/// Returns the environment with the lowest price. Those without a price cannot be reserved, and come last.
fn cheapest<'a>(all: impl Iterator<Item = &'a Environment>) -> Option<&'a Environment> {
    let order = |one: &Environment| (one.rate() <= 0.0, one.rate());
    all.min_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
}

fn names<'a>(all: impl Iterator<Item = &'a Environment>) -> String {
    all.map(|environment| environment.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn none() -> Error {
    Error::new(ErrorKind::NotFound, "create", "the account has no environments")
}

fn no_size(size: Size, among: &[&Environment]) -> Error {
    let sizes: Vec<_> =
        among.iter().map(|one| format!("{} ({})", one.name, Size::from_environment(one))).collect();
    Error::unsupported(
        "create",
        format!("no environment has exactly {size}, and the service has no other way to limit it"),
    )
    .with_context("field", size.field())
    .with_hint(format!("leave it out, or use one of {}", sizes.join(", ")))
}

fn no_gpu(gpu: &str, why: &str, all: &[Environment]) -> Error {
    let having = names(all.iter().filter(|environment| environment.gpus() > 0));
    let having = if having.is_empty() { "none".to_owned() } else { having };
    Error::unsupported("create", format!("the GPU {gpu:?} is not available: {why}"))
        .with_context("field", "gpu")
        .with_hint(format!("environments with GPUs: {having}"))
}

#[cfg(test)]
mod tests {
    use sandbox_core::ByteSize;

    use super::*;

    fn environments() -> Vec<Environment> {
        let all = json!([
            {"name": "z-env", "burning_rate": 0.1},
            {"name": "free", "burning_rate": 0},
            {"name": "python-cpu-env", "burning_rate": 0.2, "resources": {"cpu": "1.5", "memory": "8Gi"}},
            {"name": "python-gpu-env", "burning_rate": 0.3, "resources": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}},
            {"name": "big", "title": "Two NVIDIA A100-80GB", "burning_rate": 9, "resources": {"nvidia.com/gpu": 2}},
        ]);
        serde_json::from_value(all).unwrap()
    }

    fn chosen(wanted: Option<&str>, gpu: Option<&str>) -> Result<String> {
        choose(&environments(), wanted, gpu, Size::default())
            .map(|environment| environment.name.clone())
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
    fn sizes_are_exactly_those_of_environments() {
        let size = |cpu, gib: u64| Size { cpu, memory: Some(ByteSize::gib(gib)), disk: None };
        let environments = environments();
        let chosen = choose(&environments, None, None, size(Some(1.5), 8)).unwrap();
        assert_eq!(chosen.name, "python-cpu-env");
        for (wanted, gpu, size) in [
            (None, None, size(Some(1.5), 4)),
            (None, None, size(Some(2.0), 8)),
            // That of an environment with a GPU, which was not asked for.
            (None, None, size(Some(4.0), 16)),
            (Some("z-env"), None, size(None, 8)),
            (None, Some("T4"), size(None, 8)),
        ] {
            let error = choose(&environments, wanted, gpu, size).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        let error = choose(&environments, Some("python-cpu-env"), None, size(Some(4.0), 8));
        let error = error.unwrap_err();
        assert!(error.to_string().contains("exactly 4 cores and 8 GiB of memory"), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("python-cpu-env (1.5 cores and 8 GiB of memory)"), "{hint}");
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let error = chosen(Some("nope"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("available: z-env, free, python-cpu-env"), "{error}");
        let unknown = chosen(None, Some("banana")).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unsupported, "{unknown}");
        let all = [environments().remove(0), environments().remove(1)];
        assert_eq!(choose(&all, None, None, Size::default()).unwrap().name, "z-env");
        for (wanted, gpu) in [("python-cpu-env", "T4"), ("big", "T4"), ("big", "A100")] {
            let error = chosen(Some(wanted), Some(gpu)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{wanted} {gpu}");
            assert_eq!(error.hint(), Some("environments with GPUs: python-gpu-env, big"));
        }
        assert!(choose(&[], None, None, Size::default()).is_err());
    }

    #[test]
    fn resources_and_cost_are_listed() {
        let all = environments();
        let listed = all[2].listed();
        assert_eq!((listed.cpu.as_deref(), listed.memory.as_deref()), (Some("1.5"), Some("8Gi")));
        assert_eq!(listed.metadata["credits_per_hour"], json!(720.0));
        let listed = all[4].listed();
        assert_eq!((listed.gpu.as_deref(), listed.gpu_count), (Some("A100-80GB"), Some(2)));
    }
}
