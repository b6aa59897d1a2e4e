//! A query comes in: decoded once for its preparation, then told to the machine.

use crate::core::Handle;
use modelless_adapter::{
    Body as Encoded, Decoded, InputError, InputErrorKind, Limits, OutputParams, Preparation, PreparationId,
};
use modelless_decision::query::Query;
use modelless_decision::worker::Event;
use modelless_types::{Bytes, Micros, QueryKey, Refusal, Time};
use modelless_wire::{Announcement, Body, Input, InputFault, QueryFrame};
use std::sync::Arc;

/// A query that came and is not answered.
pub(crate) struct Pending {
    pub(crate) came: Time,
    pub(crate) decode: Micros,
    pub(crate) params: OutputParams,
    /// Kept so that a variant with another preparation can decode it its own way.
    pub(crate) input: Arc<Input>,
    /// `None` while a large input is being decoded.
    pub(crate) decoded: Option<Arc<Decoded>>,
    pub(crate) preparation: PreparationId,
    /// Whether a batch with it was ever started. From then on it is answered or refused here, never given back: it may
    /// be what kills runners.
    pub(crate) ran: bool,
    /// Whether its gateway said, since it came, that it may be given back.
    pub(crate) may_return: bool,
}

impl Handle {
    /// A query that this node may claim. Its input is elsewhere, so nothing is kept of it here; the machine has it.
    pub(crate) fn announced(&self, told: &Announcement) {
        let came = self.now();
        let [deadline_in, expires_in] =
            self.core().way_back.before(came, [told.deadline_in, told.expires_in]);
        let query = Query {
            key: told.key,
            tenant: told.tenant,
            app: told.app,
            class: told.class,
            arrived: Time(came.0.saturating_sub(told.spent.0)),
            deadline: came + deadline_in,
            expires: came + expires_in,
            max_cost: told.max_cost,
            prefer: told.prefer,
            priority: told.priority,
            best_effort: told.best_effort,
            bytes: told.decoded,
            returnable: false,
        };
        let Announcement { part_ppm, quickest, .. } = *told;
        self.feed(Event::Announce { query, part_ppm, quickest });
    }

    pub(crate) fn take_in(&self, frame: QueryFrame) {
        let came = self.now();
        let key = frame.key;
        let demand = frame.demand;
        self.demand(demand);
        let Some((preparation, id)) = self.catalogue().preparation_of(&frame.class) else {
            let why = "this node knows none of the variants that could answer".into();
            let refusal = Refusal::NothingRunnable { why };
            self.never_comes(key);
            self.tell_refused(key, &refusal);
            return self.say([Body::Refused { key, refusal }]);
        };
        let params = match parameters(&frame.input) {
            Ok(params) => params,
            Err(why) => {
                self.never_comes(key);
                return self.refuse_input(key, InputFault::Malformed, why);
            }
        };
        let input = Arc::new(frame.input.clone());
        let size = Bytes(u64::try_from(length(&input)).unwrap_or(u64::MAX));
        let pending = Pending {
            came,
            decode: Micros::ZERO,
            params,
            input: Arc::clone(&input),
            decoded: None,
            preparation: id,
            ran: false,
            may_return: false,
        };
        self.queries().insert(key, pending);
        if size <= self.config().decode_inline {
            self.decoded(&frame, came, decode(&preparation, &input));
            return self.wait_if_alone();
        }
        // After it was put in: either this sees the drain, or the drain sees it.
        if self.draining() {
            self.never_comes(key);
            return self.hand_back(key, Refusal::Draining);
        }
        let me = self.clone();
        let core = self.core();
        let decoders = if frame.priority.is_spare() { &core.spare_decoder } else { &core.decoders };
        let decoders = Arc::clone(decoders);
        self.spawn(async move {
            let Ok(_permit) = decoders.acquire().await else { return };
            if !me.queries().contains_key(&key) {
                return; // cancelled or given back while it waited for its turn
            }
            let decoding = tokio::task::spawn_blocking(move || decode(&preparation, &input));
            match decoding.await {
                Ok(result) => me.decoded(&frame, came, result),
                Err(error) => {
                    tracing::error!(query = %me.named(&[key]), %error, "decoding an input panicked; this is a bug");
                    let why = "decoding failed inside the server".into();
                    me.never_comes(key);
                    me.refuse(key, Refusal::InputCrashed { why });
                }
            }
        });
    }

    /// A query ends before the machine heard of it. If it was claimed, its batch need not wait for it. Fed before its gateway is told: one in this
    /// process may send the same query again while it is, and that one is not to be cancelled.
    pub(crate) fn never_comes(&self, key: QueryKey) {
        self.feed(Event::Cancel { key });
    }

    /// Says of a query that is not among the open ones (any more) that its input cannot be used.
    pub(crate) fn refuse_input(&self, key: QueryKey, fault: InputFault, why: String) {
        self.tell_bad_input(key, &why);
        self.say([Body::BadInput { key, fault, why }]);
    }

    fn decoded(&self, frame: &QueryFrame, came: Time, result: Result<Decoded, InputError>) {
        let key = frame.key;
        let decoded = match result {
            Ok(decoded) => decoded,
            Err(error) => {
                self.never_comes(key);
                if self.queries().remove(&key).is_some() {
                    self.refuse_input(key, fault(&error), error.to_string());
                }
                return;
            }
        };
        let bytes = Bytes(u64::try_from(decoded.bytes()).unwrap_or(u64::MAX));
        let before = {
            let mut queries = self.queries();
            let Some(pending) = queries.get_mut(&key) else { return };
            pending.decode = self.now() - came;
            pending.decoded = Some(Arc::new(decoded));
            pending.may_return
        };
        let [deadline_in, expires_in] =
            self.core().way_back.before(came, [frame.deadline_in, frame.expires_in]);
        self.feed(Event::Arrive(Query {
            key,
            tenant: frame.tenant,
            app: frame.app,
            class: frame.class,
            arrived: Time(came.0.saturating_sub(frame.spent.0)),
            deadline: came + deadline_in,
            expires: came + expires_in,
            max_cost: frame.max_cost,
            prefer: frame.prefer,
            priority: frame.priority,
            best_effort: frame.best_effort,
            bytes,
            returnable: frame.returnable || before,
        }));
        // Said between the two, it came to the machine before the query.
        if !before && self.queries().get(&key).is_some_and(|pending| pending.may_return) {
            self.feed(Event::MayReturn { key });
        }
    }

    /// A query may be given back, be it still being decoded, when the machine does not know it.
    pub(crate) fn may_return(&self, key: QueryKey) {
        {
            let mut queries = self.queries();
            let Some(pending) = queries.get_mut(&key) else { return };
            pending.may_return = true;
        }
        self.feed(Event::MayReturn { key });
    }
}

fn length(input: &Input) -> usize {
    match input {
        Input::Raw(bytes) => bytes.len(),
        Input::Json { inputs, .. } => inputs.len(),
    }
}

/// Decodes for a preparation.
pub(crate) fn decode(preparation: &Preparation, input: &Input) -> Result<Decoded, InputError> {
    let limits = Limits::default();
    match input {
        Input::Raw(bytes) => preparation.decode(Encoded::Raw(bytes), &limits),
        Input::Json { inputs, .. } => preparation.decode(Encoded::Json(inputs), &limits),
    }
}

/// What the query asks of its output. Unknown names and zero counts are told before anything runs.
fn parameters(input: &Input) -> Result<OutputParams, String> {
    let Input::Json { parameters: Some(text), .. } = input else { return Ok(OutputParams::default()) };
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(|err| format!("`parameters` must be an object: {err}"))?;
    if let Some(unknown) = object.keys().find(|name| !OutputParams::NAMES.contains(&name.as_str())) {
        let known = OutputParams::NAMES.join(", ");
        return Err(format!("`parameters` has an unknown name `{unknown}`; known are {known}"));
    }
    let params: OutputParams = serde_json::from_value(serde_json::Value::Object(object))
        .map_err(|err| format!("`parameters` cannot be used: {err}"))?;
    if params.top_k == Some(0) {
        return Err("`parameters.top_k` is 0; expected at least 1".into());
    }
    Ok(params)
}

fn fault(error: &InputError) -> InputFault {
    match error.kind() {
        InputErrorKind::Malformed => InputFault::Malformed,
        InputErrorKind::TooLarge => InputFault::TooLarge,
        InputErrorKind::UnsupportedMedia => InputFault::UnsupportedMedia,
    }
}
