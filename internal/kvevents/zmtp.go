package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A peer's frames are subscriptions, numbers and commands: short.
const (
	maxFrame  = 4 << 10 // bytes
	maxFrames = 16      // of a message
)

// handshakeTime is how long a peer may take for the handshake, writeTime how long it
// may take to read what is sent.
const (
	handshakeTime = 10 * time.Second
	writeTime     = 30 * time.Second
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2 // eight bytes of length
	flagCommand = 4
)

// conn is a connection that speaks ZMTP 3.0 (rfc.zeromq.org/spec/23).
type conn struct {
	net.Conn
	in *bufio.Reader
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, in: bufio.NewReader(c)} }

// handshake greets a peer and tells it the type of the socket.
func handshake(c net.Conn, socket string) (*conn, error) {
	c.SetDeadline(time.Now().Add(handshakeTime))
	greeting := make([]byte, 64) // signature, version, mechanism, server or not, filler
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	if _, err := c.Write(greeting); err != nil {
		return nil, err
	}
	z := newConn(c)
	theirs := make([]byte, 64)
	if _, err := io.ReadFull(z.in, theirs); err != nil {
		return nil, err
	}
	switch mechanism := string(bytes.TrimRight(theirs[12:32], "\x00")); {
	case theirs[0] != 0xff || theirs[9]&1 != 1:
		return nil, errors.New("the peer does not speak ZMTP")
	case theirs[10] < 3:
		return nil, fmt.Errorf("the peer speaks ZMTP %d, expected 3 or later", theirs[10])
	case mechanism != "NULL":
		return nil, fmt.Errorf("the peer wants the mechanism %q, expected NULL", mechanism)
	}
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(socket)))
	if err := z.send(flagCommand, append(ready, socket...)); err != nil {
		return nil, err
	}
	flags, body, err := z.frame()
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return nil, errors.New("the peer did not say READY")
	}
	return z, c.SetDeadline(time.Time{})
}

// frame reads a frame.
func (z *conn) frame() (flags byte, body []byte, err error) {
	if flags, err = z.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size [8]byte
	at := 7
	if flags&flagLong != 0 {
		at = 0
	}
	if _, err := io.ReadFull(z.in, size[at:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(size[:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, expected at most %d", n, maxFrame)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(z.in, body)
	return flags, body, err
}

// message reads the frames of a message, or those of a command: its name and the rest.
// It answers pings, which keep the connection alive.
func (z *conn) message() (command string, frames [][]byte, err error) {
	for {
		flags, body, err := z.frame()
		if err != nil {
			return "", nil, err
		}
		if flags&flagCommand != 0 {
			if len(body) == 0 || int(body[0]) >= len(body) {
				return "", nil, errors.New("a command without a name")
			}
			name, rest := string(body[1:1+body[0]]), body[1+body[0]:]
			if name != "PING" {
				return name, [][]byte{rest}, nil
			}
			if len(rest) < 2 {
				return "", nil, errors.New("a ping without its time")
			}
			if err := z.send(flagCommand, append([]byte("\x04PONG"), rest[2:]...)); err != nil {
				return "", nil, err
			}
			continue
		}
		if frames = append(frames, body); len(frames) > maxFrames {
			return "", nil, fmt.Errorf("a message of more than %d frames", maxFrames)
		}
		if flags&flagMore == 0 {
			return "", frames, nil
		}
	}
}

// send writes a frame.
func (z *conn) send(flags byte, body []byte) error { return z.write(appendFrame(nil, flags, body)) }

// sendMessage writes a message.
func (z *conn) sendMessage(frames ...[]byte) error { return z.write(appendMessage(nil, frames...)) }

func (z *conn) write(text []byte) error {
	z.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := z.Conn.Write(text)
	return err
}

func appendMessage(to []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		to = appendFrame(to, flags, f)
	}
	return to
}

func appendFrame(to []byte, flags byte, body []byte) []byte {
	if len(body) < 1<<8 {
		to = append(to, flags, byte(len(body)))
	} else {
		to = binary.BigEndian.AppendUint64(append(to, flags|flagLong), uint64(len(body)))
	}
	return append(to, body...)
}
