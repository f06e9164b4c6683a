/**
 * Loaded into Firepool's workflows: what a caller's own interceptors put into headers (a trace, a tenant) goes on from a lease, a
 * one-call job or an update of a session to all that it asks for in turn. A pool serves everybody, and hands on nobody's.
 */
import {
  AsyncLocalStorage,
  type Headers,
  type WorkflowInterceptors,
  workflowInfo,
} from '@temporalio/workflow'
import { WORKFLOW } from '../contract/names.js'

/** Whatever is begun under an update carries the headers of that update, else those of the workflow's start. */
const given = new AsyncLocalStorage<Headers>()

const withGiven = <I extends { readonly headers: Headers }>(input: I): I => {
  const headers = given.getStore()
  return headers ? { ...input, headers: { ...headers, ...input.headers } } : input
}

/** A module of workflow interceptors. Headers are no part of what a replay compares. */
export const interceptors = (): WorkflowInterceptors =>
  workflowInfo().workflowType === WORKFLOW.pool
    ? {}
    : {
        inbound: [
          {
            execute: (input, next) => given.run(input.headers, () => next(input)),
            handleUpdate: (input, next) => given.run(input.headers, () => next(input)),
          },
        ],
        outbound: [
          {
            scheduleActivity: (input, next) => next(withGiven(input)),
            scheduleLocalActivity: (input, next) => next(withGiven(input)),
            startChildWorkflowExecution: (input, next) => next(withGiven(input)),
            signalWorkflow: (input, next) => next(withGiven(input)),
            continueAsNew: (input, next) => next(withGiven(input)),
          },
        ],
      }
