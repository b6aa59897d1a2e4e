//! A request, asked: its rows go to the router as queries of their own, in order and a bounded number at a time, and come back as
//! one answer.

use super::ROWS_OPEN;
use super::answers::{Collected, Output, scored};
use super::request::{Extra, Request};
use super::rows::Rows;
use crate::access::Caller;
use crate::ask::{Answered, Manner, let_in_rows};
use crate::core::Core;
use crate::errors::ApiError;
use crate::goals::Given;
use crate::http::body::Held;
use crate::many::{self, Common};
use crate::regions;
use crate::told;
use crate::trials::Seen;
use crate::view::{TaskView, View};
use crate::whole::Whole;
use http::HeaderMap;
use modelless_decision::rows::Begins;
use modelless_types::{Goals, VariantId};

/// An answer, whichever encoding it gets.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) id: String,
    /// Who answered; of several the least accurate.
    pub(crate) version: VariantId,
    pub(crate) outputs: Vec<Output>,
    /// Outputs that say nothing else come raw.
    pub(crate) binary: bool,
    /// The decision.
    pub(crate) told: HeaderMap,
}

/// Asks.
pub(crate) async fn run(
    whole: &mut Whole<'_>,
    (view, caller, manner): (&View, &Caller, &Manner),
    mut request: Request,
    mut given: Given,
) -> Result<Response, ApiError> {
    let Whole { core, task, arrived, .. } = *whole;
    let unread = |error| task.unread(core, caller, error);
    // What was read from shared memory counts as held until the request has ended.
    let _held = regions::resolve(core, caller, &mut request).await.map_err(unread)?;
    let (goals, extra, mut collected) = read(task, &mut request, &mut given).map_err(unread)?;
    let id = std::mem::take(&mut request.id);
    let signature = &task.signature;
    let rows = Rows::of(request, &task.task, signature, &extra, scored(task.task.kind)).map_err(unread)?;
    let (count, single) = (rows.count, rows.single);
    let places = let_in_rows(core, (caller, task), count, ROWS_OPEN)?;
    // Answers count as held memory while they are gathered.
    let mut gathered = Held::of(core, caller, 0)?;
    let common = Common { core, task, goals, caller, manner, arrived, let_in: places.let_in() };
    let one = |row: usize, begins: Begins| {
        let rows = &rows;
        async move {
            let input = rows.input(row).inspect_err(|error| task.not_asked(error))?;
            common.ask(input, begins).await
        }
    };
    let mut parts = Vec::with_capacity(count);
    let usual = caller.policies.applied(task, &goals);
    let pace = many::pace(&task.task, &usual, (count, extra.bounded), places.at_once);
    let all = many::ask(
        count,
        pace,
        one,
        |answered: &Answered| gathered.add(answered.answer.body.len()).map(|()| answered.total),
        |mut answered: Answered| {
            collected.add(task, &answered.answer.body).inspect_err(|error| {
                if error.status == http::StatusCode::UNPROCESSABLE_ENTITY {
                    answered.seen.iter_mut().for_each(Seen::failed);
                }
            })?;
            if count > told::IDS_MAX {
                // It was read; kept are only those whose label a query's name tells.
                answered.answer.body.clear();
            }
            parts.push(answered);
            Ok(())
        },
    );
    all.await.map_err(|(row, error)| of_row(error, row, count))?;
    let mut told = HeaderMap::new();
    told::tell(core, view, task, &parts, &mut told)?;
    let version = whole.answered(&parts);
    let mut outputs = collected.finish((!single).then_some(count));
    regions::deliver(&mut outputs).await?;
    Ok(Response { id, version, outputs, binary: extra.binary, told })
}

fn read(
    task: &TaskView,
    request: &mut Request,
    given: &mut Given,
) -> Result<(Goals, Extra, Collected), ApiError> {
    let extra = request.goals(task.task.kind, given)?;
    let collected = Collected::of(std::mem::take(&mut request.outputs), &task.signature)?;
    Ok((task.resolve(given)?, extra, collected))
}

fn of_row(error: ApiError, row: usize, count: usize) -> ApiError {
    if count == 1 {
        return error;
    }
    let message = format!("row {row} of {count}: {}", error.message);
    ApiError { message, ..error }
}

impl TaskView {
    /// Counts a request that could not be read, also against the quota of whoever sent it, and gives what to say of it.
    pub(crate) fn unread(&self, core: &Core, caller: &Caller, error: ApiError) -> ApiError {
        self.not_asked(&error);
        caller.unread(core.driver.clock().now(), error)
    }

    /// Counts what was not even asked.
    fn not_asked(&self, error: &ApiError) {
        if error.status.is_client_error() && error.status != http::StatusCode::UNPROCESSABLE_ENTITY {
            self.metrics.bad_input();
        } else {
            self.metrics.refused(error.reason);
        }
    }
}
