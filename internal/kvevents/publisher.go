package kvevents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// Limits on the batches that late readers can replay.
const (
	maxQueue       = 4096     // reported prompts that wait to be published
	maxReplay      = 10000    // batches that can be resent, as in vLLM
	maxReplayBytes = 64 << 20 // bytes of them
	maxPeers       = 64       // simultaneous connections
	maxTopics      = 256      // subscriptions of one peer
)

// lingerTime is how long Close waits for subscribers to read the last batches.
const lingerTime = time.Second

// Options say where a [Publisher] listens.
type Options struct {
	Events string // TCP address of the PUB socket
	Replay string // address of the ROUTER socket; empty: there is none

	// Name is how the router knows this server: its address and port. It is part of the
	// topics, kv@NAME@MODEL.
	Name string

	Log *slog.Logger // names peers that do not speak the protocol; nil: none
}

// Publisher announces blocks. It may be used by any number of goroutines.
type Publisher struct {
	o              Options
	events, replay net.Listener // replay may be nil
	wake           chan struct{}
	stop           chan struct{} // closed by Close
	all            chan struct{} // closed when no more batches come
	publishing     sync.WaitGroup
	serving        sync.WaitGroup

	mu     sync.Mutex
	models []*Model
	next   uint64  // sequence number of the next batch
	sent   []batch // the latest batches, numbered without gaps
	bytes  int     // of them
	peers  map[net.Conn]*peer
	ended  bool
}

// peer is a connection. When there are too many, one that waits for nothing makes room
// for others; one waits if it has subscribed, or while batches are resent to it.
type peer struct {
	*subscriber           // of the PUB socket; nil until the handshake is over
	idle        time.Time // since when it has asked for nothing; zero: it is being answered
}

// batch is a message that was sent.
type batch struct {
	seq     uint64
	topic   []byte
	payload []byte
}

// Listen begins to publish. The caller closes the publisher after the engines.
func Listen(o Options) (*Publisher, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Publisher{
		o: o, wake: make(chan struct{}, 1), stop: make(chan struct{}), all: make(chan struct{}), peers: map[net.Conn]*peer{},
	}
	var err error
	if p.events, err = net.Listen("tcp", o.Events); err != nil {
		return nil, fmt.Errorf("publish KV events: %w", err)
	}
	if o.Replay != "" {
		if p.replay, err = net.Listen("tcp", o.Replay); err != nil {
			p.events.Close()
			return nil, fmt.Errorf("replay KV events: %w", err)
		}
		p.serving.Go(func() { p.accept(p.replay, "ROUTER", p.serveReplay) })
	}
	p.serving.Go(func() { p.accept(p.events, "PUB", p.serveSubscriber) })
	p.publishing.Go(p.run)
	return p, nil
}

// Addr returns the address where events are published.
func (p *Publisher) Addr() net.Addr { return p.events.Addr() }

// ReplayAddr returns the address where they are resent; nil if they are not.
func (p *Publisher) ReplayAddr() net.Addr {
	if p.replay == nil {
		return nil
	}
	return p.replay.Addr()
}

// Model takes the reports of one model's prompts.
type Model struct {
	p      *Publisher
	topic  []byte
	blocks *blocks // used by the publisher's goroutine only

	mu    sync.Mutex // guards the following; held only for moments
	queue []change
	lost  bool // the queue was full
}

// change is a prompt that is kept from now on, or no longer.
type change struct {
	label  string
	tokens []int32
	kept   bool
}

// Model adds a model under the name that requests use. It announces that the model has
// no blocks yet.
func (p *Publisher) Model(name string) *Model {
	m := &Model{p: p, topic: fmt.Appendf(nil, "kv@%s@%s", p.o.Name, name), blocks: newBlocks(), lost: true}
	p.mu.Lock()
	p.models = append(p.models, m)
	p.mu.Unlock()
	poke(p.wake)
	return m
}

// Report says that a prompt's cache is kept from now on, or no longer; prompts of
// different labels share nothing. It does not wait. The tokens must not be changed.
func (m *Model) Report(label string, tokens []int32, kept bool) {
	m.mu.Lock()
	if len(m.queue) == maxQueue {
		m.queue, m.lost = nil, true
	}
	m.queue = append(m.queue, change{label, tokens, kept})
	m.mu.Unlock()
	poke(m.p.wake)
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// run publishes reports until the publisher is closed, and then those that are left.
func (p *Publisher) run() {
	for over := false; ; {
		p.mu.Lock()
		models := p.models[:len(p.models):len(p.models)]
		p.mu.Unlock()
		for _, m := range models {
			m.publish()
		}
		if over {
			return
		}
		select {
		case <-p.wake:
		case <-p.stop:
			over = true
		}
	}
}

// publish publishes what was reported.
func (m *Model) publish() {
	m.mu.Lock()
	queue, lost := m.queue, m.lost
	m.queue, m.lost = nil, false
	m.mu.Unlock()
	if lost {
		m.blocks = newBlocks()
		m.p.send(m.topic, cleared())
	}
	for _, c := range queue {
		event := m.blocks.remove
		if c.kept {
			event = m.blocks.put
		}
		if text := event(c.label, c.tokens); text != nil {
			m.p.send(m.topic, text)
		}
	}
}

// send numbers a batch of one event and makes it available to subscribers.
func (p *Publisher) send(topic []byte, event pack) {
	var text pack
	text.array(3)
	text.float64(float64(time.Now().UnixMicro()) / 1e6)
	text.array(1)
	text = append(text, event...)
	text.null() // data parallel rank
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, batch{seq: p.next, topic: topic, payload: text})
	p.next++
	p.bytes += len(text)
	for len(p.sent) > maxReplay || p.bytes > maxReplayBytes && len(p.sent) > 1 {
		p.bytes -= len(p.sent[0].payload)
		p.sent[0] = batch{}
		p.sent = p.sent[1:]
	}
	for _, x := range p.peers {
		if x.subscriber != nil {
			poke(x.wake)
		}
	}
}

// since returns some of the batches sent from a sequence number on, the oldest first;
// none if none are newer. Batches that have been dropped are left out.
func (p *Publisher) since(seq uint64) []batch {
	const some = 64
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.next - uint64(len(p.sent))
	from := min(max(seq, first), p.next) - first
	list := p.sent[from:]
	return slices.Clone(list[:min(some, len(list))])
}

// Close publishes what was reported, gives subscribers a moment to read it, and stops.
// Closing twice is fine.
func (p *Publisher) Close() error {
	p.mu.Lock()
	was := p.ended
	p.ended = true
	p.mu.Unlock()
	if was {
		return nil
	}
	close(p.stop)
	p.events.Close()
	if p.replay != nil {
		p.replay.Close()
	}
	p.publishing.Wait()
	close(p.all)
	late := time.AfterFunc(lingerTime, p.cut)
	defer late.Stop()
	p.serving.Wait()
	return nil
}

// cut ends all connections.
func (p *Publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.peers {
		c.Close()
	}
}

// accept accepts connections, each served by its own goroutine.
func (p *Publisher) accept(l net.Listener, socket string, serve func(*conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			select {
			case <-p.stop:
				return
			case <-time.After(100 * time.Millisecond): // such as too many open files
				continue
			}
		}
		p.mu.Lock()
		if p.ended || len(p.peers) >= maxPeers && !p.makeRoom() {
			p.mu.Unlock()
			c.Close()
			continue
		}
		p.peers[c] = &peer{idle: time.Now()}
		p.mu.Unlock()
		p.serving.Go(func() {
			defer p.leave(c)
			z, err := handshake(c, socket)
			if err != nil {
				p.o.Log.Info("KV events: peer refused", "address", c.RemoteAddr().String(), "error", err)
				return
			}
			serve(z)
		})
	}
}

// makeRoom cuts the connection that has been idle longest, and reports whether there was
// one. The caller holds the mutex.
func (p *Publisher) makeRoom() bool {
	var longest net.Conn
	for c, x := range p.peers {
		if x.waits() && (longest == nil || x.idle.Before(p.peers[longest].idle)) {
			longest = c
		}
	}
	if longest == nil {
		return false
	}
	delete(p.peers, longest) // its goroutines end a moment later
	longest.Close()
	return true
}

// waits reports whether a peer is idle.
func (x *peer) waits() bool {
	return !x.idle.IsZero() && (x.subscriber == nil || !x.subscribed())
}

// asks records that a peer of the ROUTER socket is being answered, or no longer.
func (p *Publisher) asks(c net.Conn, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.peers[c]; x != nil {
		if x.idle = time.Now(); busy {
			x.idle = time.Time{}
		}
	}
}

func (p *Publisher) leave(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.peers, c)
	c.Close()
}

// subscriber is a peer of the PUB socket.
type subscriber struct {
	wake chan struct{} // there are batches

	mu     sync.Mutex
	topics [][]byte // prefixes
}

func (s *subscriber) wants(topic []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.topics, func(t []byte) bool { return bytes.HasPrefix(topic, t) })
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0
}

// subscribe adds or removes a subscription. It reports false if there are too many.
func (s *subscriber) subscribe(topic []byte, on bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.topics = append(s.topics, topic)
	} else if i := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
		s.topics = slices.Delete(s.topics, i, i+1)
	}
	return len(s.topics) <= maxTopics
}

// serveSubscriber sends batches until the peer disconnects. A peer that does not keep
// up loses the batches that have been dropped; their numbers tell how many.
func (p *Publisher) serveSubscriber(z *conn) {
	s := &subscriber{wake: make(chan struct{}, 1)}
	p.mu.Lock()
	if x := p.peers[z.Conn]; x != nil {
		x.subscriber = s
	}
	next := p.next
	p.mu.Unlock()
	gone := make(chan struct{})
	p.serving.Go(func() {
		defer close(gone)
		s.read(z)
	})
	for over := false; ; {
		list := p.since(next)
		for _, b := range list {
			next = b.seq + 1
			if s.wants(b.topic) && z.sendMessage(b.topic, number(b.seq), b.payload) != nil {
				return
			}
		}
		switch {
		case len(list) > 0:
			continue
		case over:
			return
		}
		select {
		case <-s.wake:
		case <-gone:
			return
		case <-p.all:
			over = true
		}
	}
}

// read processes subscriptions until the peer disconnects.
func (s *subscriber) read(z *conn) {
	for {
		command, frames, err := z.message()
		if err != nil {
			return
		}
		topic := frames[0]
		switch {
		case command == "SUBSCRIBE" || command == "CANCEL": // of ZMTP 3.1
		case command == "" && len(topic) > 0 && topic[0] <= 1:
			command, topic = [...]string{"CANCEL", "SUBSCRIBE"}[topic[0]], topic[1:]
		default:
			continue
		}
		if !s.subscribe(topic, command == "SUBSCRIBE") {
			return
		}
	}
}

// serveReplay resends batches from the number that a peer asks for: the number and
// batch of each, and at the end the number -1 with an empty batch.
func (p *Publisher) serveReplay(z *conn) {
	over := make(chan struct{})
	defer close(over)
	p.serving.Go(func() { // at the end, nobody waits for further requests
		select {
		case <-p.all:
			z.SetReadDeadline(time.Now())
		case <-over:
		}
	})
	for {
		command, frames, err := z.message()
		if err != nil {
			return
		}
		if command != "" {
			continue
		}
		var envelope [][]byte // from a REQ socket: an empty frame
		if len(frames) > 1 && len(frames[0]) == 0 {
			envelope, frames = frames[:1:1], frames[1:]
		}
		if len(frames) != 1 || len(frames[0]) != 8 {
			return
		}
		p.asks(z.Conn, true)
		next := binary.BigEndian.Uint64(frames[0])
		for list := p.since(next); len(list) > 0; list = p.since(next) {
			for _, b := range list {
				next = b.seq + 1
				if z.sendMessage(append(envelope, number(b.seq), b.payload)...) != nil {
					return
				}
			}
		}
		if z.sendMessage(append(envelope, number(^uint64(0)), nil)...) != nil {
			return
		}
		p.asks(z.Conn, false)
	}
}

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
