//! The provider: calls to Kubernetes' API.

use super::config::KubernetesPool;
use super::failure::{error, of_status};
use super::pod::{Whose, ended, instance, parts, pod};
use crate::{Error, Fleet, Instance, Wanted};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// For one call, whatever comes in between.
const WITHIN: Duration = Duration::from_secs(20);
/// Of pods, in one answer.
const PAGE: u32 = 500;
/// Answers for one list; more pods than these hold no pool has.
const PAGES: usize = 20;
/// So many pods that ended are left, the youngest.
const LEFT: usize = 10;
/// And so many of the others are deleted after one list.
const DELETED: usize = 20;

/// Whose pods, and what of them.
#[derive(Clone, Debug)]
pub struct KubernetesConfig {
    /// The cluster, by a name that no other one in this Kubernetes has.
    pub cluster: String,
    /// The pool.
    pub pool: String,
    /// What is set for it.
    pub of: KubernetesPool,
    /// The cluster's name as its executors have it set.
    pub named: String,
}

/// The provider.
pub struct Kubernetes {
    config: KubernetesConfig,
    /// Made when it is first needed, from files that may not be there before.
    client: OnceCell<Client>,
}

/// Within its time.
async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, kube::Error> {
    let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no answer within {WITHIN:?}"));
    timeout(WITHIN, call).await.unwrap_or_else(|_| Err(kube::Error::Service(late().into())))
}

impl Kubernetes {
    /// Calls nothing yet.
    pub fn new(config: KubernetesConfig) -> Self {
        Self { config, client: OnceCell::new() }
    }

    fn whose(&self) -> Whose<'_> {
        Whose { cluster: &self.config.cluster, pool: &self.config.pool }
    }

    async fn connect(&self) -> Result<Client, Error> {
        let of = &self.config.of;
        let mut config = match &of.kubeconfig {
            Some(path) => {
                let unread = |why: &dyn std::fmt::Display| {
                    Error::Refused(format!("the kubeconfig {}: {why}", path.display()))
                };
                let read = Kubeconfig::read_from(path).map_err(|why| unread(&why))?;
                let options = KubeConfigOptions { context: of.context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(read, &options).await.map_err(|why| unread(&why))?
            }
            None => Config::incluster().map_err(|why| {
                Error::Refused(format!(
                    "this is no pod of Kubernetes ({why}): start it in one, with a service account, or name a `kubeconfig`"
                ))
            })?,
        };
        if let Some(namespace) = &of.namespace {
            config.default_namespace.clone_from(namespace);
        }
        config.connect_timeout = Some(WITHIN);
        config.read_timeout = Some(WITHIN);
        config.write_timeout = Some(WITHIN);
        config.reset_reader_on_write = true;
        // Whoever asks asks again by himself, later each time.
        config.default_retry = false;
        Client::try_from(config).map_err(|failure| error(&failure))
    }

    async fn client(&self) -> Result<Client, Error> {
        self.client.get_or_try_init(|| self.connect()).await.cloned()
    }

    async fn pods(&self) -> Result<Api<Pod>, Error> {
        Ok(Api::default_namespaced(self.client().await?))
    }

    async fn template(&self) -> Result<PodTemplate, Error> {
        let templates: Api<PodTemplate> = Api::default_namespaced(self.client().await?);
        let name = &self.config.of.template;
        match within(templates.get_opt(name)).await {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(Error::Refused(format!(
                "there is no PodTemplate `{name}` in this namespace; make one with `kubectl apply`, as docs/machines.md shows"
            ))),
            Err(failure) => Err(error(&failure)),
        }
    }

    /// Somebody made a pod of this name before.
    async fn there_already(&self, pods: &Api<Pod>, name: &str, wanted: &Wanted) -> Result<Instance, Error> {
        let there = within(pods.get_opt(name)).await.map_err(|failure| error(&failure))?;
        let there =
            there.ok_or_else(|| Error::Away(format!("the pod {name} was there and is not any more")))?;
        if !self.whose().has(&there, &wanted.name) {
            return Err(Error::Refused(format!("there is a pod {name} that is not this cluster's")));
        }
        instance(&there).ok_or_else(|| Error::Refused(format!("the pod {name} has ended already")))
    }

    async fn delete(&self, pods: &Api<Pod>, (name, uid): (&str, &str)) -> Result<(), Error> {
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(only);
        match within(pods.delete(name, &params)).await {
            Ok(_) => Ok(()),
            // It is not there any more, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(kube::Error::Api(status)) => Err(of_status(&status)),
            Err(failure) => Err(error(&failure)),
        }
    }

    /// Deletes pods that ended, but for the youngest.
    async fn clear(&self, pods: &Api<Pod>, mut over: Vec<Pod>) {
        let made = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        over.sort_by_key(|pod| std::cmp::Reverse(made(pod)));
        for pod in
            over.iter().skip(LEFT).filter(|pod| pod.metadata.deletion_timestamp.is_none()).take(DELETED)
        {
            let Some(id) = super::pod::id(pod) else { continue };
            let Some(parts) = parts(&id) else { continue };
            if let Err(why) = self.delete(pods, parts).await {
                tracing::warn!(pod = id, %why, "a pod that ended could not be deleted; it is tried again");
                return;
            }
        }
    }
}

#[async_trait]
impl Fleet for Kubernetes {
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error> {
        let pods = self.pods().await?;
        let KubernetesConfig { of, named, .. } = &self.config;
        let wants = pod(of, self.whose(), named, wanted, self.template().await?).map_err(Error::Refused)?;
        let name = self.whose().pod_name(&wanted.name);
        match within(pods.create(&PostParams::default(), &wants)).await {
            Ok(made) => {
                tracing::info!(name = wanted.name, pod = name, "Kubernetes has a new pod");
                instance(&made).ok_or_else(|| Error::Away("Kubernetes names no pod".to_owned()))
            }
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                self.there_already(&pods, &name, wanted).await
            }
            Err(failure) => Err(error(&failure)),
        }
    }

    async fn list(&self) -> Result<Vec<Instance>, Error> {
        let pods = self.pods().await?;
        let mut asked = ListParams::default().labels(&self.whose().selector()).limit(PAGE);
        let (mut all, mut over) = (Vec::new(), Vec::new());
        for _ in 0..PAGES {
            let page = within(pods.list(&asked)).await.map_err(|failure| error(&failure))?;
            let (some_over, some): (Vec<Pod>, Vec<Pod>) = page.items.into_iter().partition(ended);
            all.extend(some.iter().filter_map(instance));
            over.extend(some_over);
            let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else {
                self.clear(&pods, over).await;
                return Ok(all);
            };
            asked = asked.continue_token(&next);
        }
        // Whoever takes a part for all would ask for more than may be.
        Err(Error::Away("Kubernetes' list of pods has no end".to_owned()))
    }

    async fn stop(&self, id: &str) -> Result<(), Error> {
        let parts = parts(id).ok_or_else(|| {
            Error::Refused(format!(
                "{id:?} is no pod of ours; expected its name and its uid with a `/` between"
            ))
        })?;
        self.delete(&self.pods().await?, parts).await
    }
}
