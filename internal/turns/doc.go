// Package turns shares out the processor time that requests take beside the steps of
// engines: bodies that are read, prompts that become tokens, grammars and masks, answers
// that become JSON, losses that are measured. There is one account of it for the process,
// since steps wait for each of their threads, whatever kind of work has taken the processor
// of one.
//
// Work goes on in turns of about a millisecond. At most half of the processors have one at
// a time. Owners take turns, and so does the work of each owner: however much an owner
// asks for, and of whatever kind, others wait for one turn of it. While an engine computes,
// all turns together also take at most a quarter of the time that they could; turns that are
// rare do not notice.
//
// Work says where it may be interrupted, at the points at which it looks whether it was
// cancelled: [Check] takes the place of Context.Err. Nothing may wait for anything but
// another turn while it has one: it gives the turn back first. Work of several owners that
// needs the same thing has a [Lock] on it.
//
// # Contexts
//
// A context says whose work is done for it ([Of], [Owned]), and which turn the goroutine
// that has the context may use ([Turn.Use]). A goroutine that goes on with work of another
// one has a context from [Apart].
package turns
