package engine

import "slices"

// queue holds waiting requests. Clients take turns; the requests of each are
// served in order of arrival.
type queue struct {
	clients []*client // with requests, the next to be served first
	by      map[string]*client
	n       int // requests
	tokens  int // of their prompts
}

type client struct {
	name string
	jobs []*job
}

func (q *queue) push(j *job) {
	if q.by == nil {
		q.by = map[string]*client{}
	}
	c := q.by[j.req.Client]
	if c == nil {
		c = &client{name: j.req.Client}
		q.by[c.name] = c
		q.clients = append(q.clients, c)
	}
	c.jobs = append(c.jobs, j)
	q.n++
	q.tokens += len(j.req.Prompt)
}

// pushFront puts back a request that lost its cache, to be served next.
func (q *queue) pushFront(j *job) {
	q.push(j)
	c := q.by[j.req.Client]
	copy(c.jobs[1:], c.jobs)
	c.jobs[0] = j
	for i, x := range q.clients {
		if x == c {
			copy(q.clients[1:i+1], q.clients[:i])
			q.clients[0] = c
		}
	}
}

// front returns the request to serve next; nil if none waits.
func (q *queue) front() *job {
	if len(q.clients) == 0 {
		return nil
	}
	return q.clients[0].jobs[0]
}

// first returns the first request for which ok holds among those that their clients would
// have served next; nil if there is none.
func (q *queue) first(ok func(*job) bool) *job {
	for _, c := range q.clients {
		if j := c.jobs[0]; ok(j) {
			return j
		}
	}
	return nil
}

// pop removes the front; its client goes to the end of the line.
func (q *queue) pop() {
	c := q.clients[0]
	q.take(c, 0)
	if len(c.jobs) > 0 {
		q.clients = append(q.clients[1:], c)
	}
}

// remove removes a request, wherever it is.
func (q *queue) remove(j *job) {
	c := q.by[j.req.Client]
	q.take(c, slices.Index(c.jobs, j))
}

func (q *queue) take(c *client, i int) {
	q.n--
	q.tokens -= len(c.jobs[i].req.Prompt)
	c.jobs = slices.Delete(c.jobs, i, i+1)
	if len(c.jobs) > 0 {
		return
	}
	delete(q.by, c.name)
	for i, x := range q.clients {
		if x == c {
			q.clients = append(q.clients[:i:i], q.clients[i+1:]...)
		}
	}
}

// all returns every waiting request.
func (q *queue) all() []*job {
	var out []*job
	for _, c := range q.clients {
		out = append(out, c.jobs...)
	}
	return out
}
