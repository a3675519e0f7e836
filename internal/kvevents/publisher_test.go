package kvevents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dial connects as a socket of the given type would.
func dial(t *testing.T, to net.Addr, socket string) *conn {
	c, err := net.Dial("tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	z, err := handshake(c, socket)
	require.NoError(t, err)
	return z
}

// receive reads a message of any length, as the specification says.
func (z *conn) receive(t *testing.T) (frames [][]byte, ok bool) {
	for {
		flags, err := z.in.ReadByte()
		if err != nil {
			return nil, false
		}
		size := make([]byte, 1+7*(flags>>1&1))
		_, err = io.ReadFull(z.in, size)
		require.NoError(t, err)
		n := uint64(size[0])
		if len(size) > 1 {
			n = binary.BigEndian.Uint64(size)
		}
		body := make([]byte, n)
		_, err = io.ReadFull(z.in, body)
		require.NoError(t, err)
		if frames = append(frames, body); flags&1 == 0 {
			return frames, true
		}
	}
}

func listen(t *testing.T, o Options) *Publisher {
	o.Events, o.Name = "127.0.0.1:0", "10.0.0.1:8000"
	p, err := Listen(o)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// hear reads batches up to the last, whose number is given.
func hear(t *testing.T, z *conn, r router, topic string, last uint64) {
	for {
		frames, ok := z.receive(t)
		require.True(t, ok)
		require.Len(t, frames, 3)
		require.Equal(t, topic, string(frames[0]))
		v, rest := unpack(t, frames[2])
		require.Empty(t, rest)
		batch := v.([]any)
		require.Len(t, batch, 3)
		require.InDelta(t, float64(time.Now().Unix()), batch[0], 60)
		require.Len(t, batch[1], 1)
		require.Nil(t, batch[2])
		r.hear(t, frames[2][11:len(frames[2])-1]) // what lies between time and rank
		if binary.BigEndian.Uint64(frames[1]) == last {
			return
		}
	}
}

// TestPublish: a subscriber knows what is kept; a late one asks for what it missed.
func TestPublish(t *testing.T) {
	p := listen(t, Options{Replay: "127.0.0.1:0"})
	m := p.Model("org/name")
	z := dial(t, p.Addr(), "SUB")
	require.NoError(t, z.sendMessage([]byte("\x01other")))
	require.NoError(t, z.send(flagCommand, []byte("\x09SUBSCRIBEkv@"))) // of ZMTP 3.1
	require.NoError(t, z.send(flagCommand, []byte("\x04PING\x00\x00here")))
	flags, body, err := z.frame()
	require.NoError(t, err)
	for flags&flagCommand == 0 { // the first batch may come before
		flags, body, err = z.frame()
		require.NoError(t, err)
	}
	require.Equal(t, "\x04PONGhere", string(body))

	label, tokens := prompt("aabp", 3)
	m.Report(label, tokens, true)
	m.Report(label, tokens[:20], true) // nothing new
	m.Report(label, tokens, false)
	r := router{}
	hear(t, z, r, "kv@10.0.0.1:8000@org/name", 2)
	r.knows(t, map[string]int{"ap": 1})

	// A REQ socket sends an empty frame first, a DEALER need not.
	for _, envelope := range [][][]byte{{{}}, {}} {
		again := router{}
		q := dial(t, p.ReplayAddr(), "DEALER")
		require.NoError(t, q.sendMessage(append(envelope, number(0))...))
		for seq := range 4 {
			frames, ok := q.receive(t)
			require.True(t, ok)
			require.Len(t, frames, 2+len(envelope))
			frames = frames[len(envelope):]
			if seq == 3 {
				require.Equal(t, [][]byte{bytes.Repeat([]byte{0xff}, 8), {}}, frames)
				break
			}
			require.Equal(t, uint64(seq), binary.BigEndian.Uint64(frames[0]))
			again.hear(t, frames[1][11:len(frames[1])-1])
		}
		require.Equal(t, r, again)
	}

	// What was reported before Close is still sent.
	m.Report(label, tokens[:20], false)
	require.NoError(t, p.Close())
	hear(t, z, r, "kv@10.0.0.1:8000@org/name", 3)
	require.Empty(t, r)
	_, ok := z.receive(t)
	require.False(t, ok)
}

// TestFullQueue: if reports come faster than they are published, everything is taken
// back, and what came since is announced.
func TestFullQueue(t *testing.T) {
	p := &Publisher{wake: make(chan struct{}, 1)} // nothing is published by itself
	m := p.Model("m")
	m.publish()
	label, tokens := prompt("ap", 0)
	m.Report(label, tokens, true)
	m.publish()
	_, other := prompt("bp", 0)
	for range maxQueue {
		m.Report(label, other, true)
	}
	require.Len(t, m.queue, maxQueue)
	m.Report(label, other, true)
	m.Report(label, tokens, false) // no longer known by then
	m.publish()
	r := router{}
	for _, b := range p.since(0) {
		r.hear(t, pack(b.payload[11:len(b.payload)-1]))
	}
	r.knows(t, map[string]int{"bp": 1})
	require.Len(t, p.since(0), 4)
}

// TestReplayIsBounded: the oldest batches are dropped, and a reader can tell from the
// numbers which.
func TestReplayIsBounded(t *testing.T) {
	p := &Publisher{}
	for range maxReplay + 5 {
		p.send([]byte("t"), cleared())
	}
	require.Len(t, p.sent, maxReplay)
	require.Equal(t, uint64(5), p.since(0)[0].seq)
	require.Equal(t, uint64(maxReplay), p.since(maxReplay)[0].seq)
	require.Empty(t, p.since(maxReplay+5))
	require.Empty(t, p.since(1<<63), "a number of nobody")
	p.send([]byte("t"), make(pack, maxReplayBytes))
	require.Len(t, p.sent, 1, "the newest stays")
	p.send([]byte("t"), cleared())
	require.Len(t, p.sent, 1)
}

// TestBadPeers: a peer that does not speak the protocol is cut off and affects nobody
// else.
func TestBadPeers(t *testing.T) {
	p := listen(t, Options{})
	m := p.Model("m")
	greeting := func(version byte, mechanism string) string {
		return "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f" + string(version) + "\x00" + mechanism + strings.Repeat("\x00", 52-len(mechanism))
	}
	good := greeting(3, "NULL")
	ready := "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	for name, text := range map[string]string{
		"HTTP":       "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + strings.Repeat(" ", 64),
		"ZMTP 2":     greeting(1, "NULL"),
		"security":   greeting(3, "CURVE"),
		"no READY":   good + "\x00\x01\x01",
		"an error":   good + "\x04\x09\x05ERROR\x02no",
		"long frame": good + ready + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
		"no end":     good + ready + strings.Repeat("\x01\x00", maxFrames+1),
		"no command": good + ready + "\x04\x00",
		"no time":    good + ready + "\x04\x05\x04PING",
		"topics":     good + ready + strings.Repeat("\x00\x02\x01a", maxTopics+1),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", p.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			io.WriteString(c, text)
			c.SetReadDeadline(time.Now().Add(time.Minute))
			_, err = io.Copy(io.Discard, c)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded) // otherwise it was not cut off
		})
	}
	z := dial(t, p.Addr(), "SUB")
	require.NoError(t, z.sendMessage([]byte("\x01kv@")))
	require.NoError(t, z.send(flagCommand, []byte("\x04PING\x00\x00"))) // answered after the subscription
	flags, _, err := z.frame()
	require.NoError(t, err)
	require.Equal(t, byte(flagCommand), flags)
	label, tokens := prompt("abp", 0)
	m.Report(label, tokens, true)
	r := router{}
	hear(t, z, r, "kv@10.0.0.1:8000@m", 1)
	r.knows(t, map[string]int{"abp": 1})
}

// TestIdlePeersMakeRoom: connections that ask for nothing keep nobody out, and take no
// subscriber's place.
func TestIdlePeersMakeRoom(t *testing.T) {
	p := listen(t, Options{Replay: "127.0.0.1:0"})
	m := p.Model("m")
	subscribe := func() *conn {
		z := dial(t, p.Addr(), "SUB")
		require.NoError(t, z.sendMessage([]byte("\x01kv@")))
		require.NoError(t, z.send(flagCommand, []byte("\x04PING\x00\x00"))) // answered after the subscription
		_, _, err := z.frame()
		require.NoError(t, err)
		return z
	}
	first := subscribe()
	for i := range 2 * maxPeers {
		switch i % 3 {
		case 0: // says nothing
			c, err := net.Dial("tcp", p.Addr().String())
			require.NoError(t, err)
			defer c.Close()
		case 1:
			dial(t, p.Addr(), "SUB")
		case 2:
			dial(t, p.ReplayAddr(), "DEALER")
		}
	}
	last := subscribe()
	label, tokens := prompt("abp", 0)
	m.Report(label, tokens, true)
	for _, z := range []*conn{first, last} {
		r := router{}
		hear(t, z, r, "kv@10.0.0.1:8000@m", 1)
		r.knows(t, map[string]int{"abp": 1})
	}
	for range maxPeers - 2 {
		subscribe()
	}
	c, err := net.Dial("tcp", p.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = handshake(c, "SUB")
	require.Error(t, err, "all places are in use")
}

// TestListenFails: errors say which address cannot be used.
func TestListenFails(t *testing.T) {
	_, err := Listen(Options{Events: "nowhere:x"})
	require.ErrorContains(t, err, "publish KV events")
	p := listen(t, Options{})
	_, err = Listen(Options{Events: "127.0.0.1:0", Replay: p.Addr().String()})
	require.ErrorContains(t, err, "replay KV events")
	require.Nil(t, p.ReplayAddr())
}

// FuzzMessage: whatever a peer sends, reading ends, in bounded memory.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x00\x04\x01kv@"))
	f.Add([]byte("\x01\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x05"))
	f.Add([]byte("\x04\x0d\x09SUBSCRIBEkv@"))
	f.Add([]byte("\x06\x00\x00\x00\x00\x00\x00\x00\x07\x04PING\x00\x00"))
	f.Add([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		z := newConn(&scripted{Reader: bytes.NewReader(text)})
		for {
			command, frames, err := z.message()
			if err != nil {
				break
			}
			total := 0
			for _, frame := range frames {
				total += len(frame)
			}
			if total > len(text) || len(frames) > maxFrames || len(frames) == 0 {
				t.Fatal(fmt.Sprint(command, len(frames), total))
			}
		}
	})
}

// scripted is a connection that sends what it was told to.
type scripted struct {
	net.Conn
	io.Reader
}

func (s *scripted) Read(p []byte) (int, error)       { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }
