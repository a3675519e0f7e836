//go:build !linux

package command

import "testing"

func TestChatTerminal(t *testing.T) {
	t.Skip("the test of chat on a pseudo-terminal is written for Linux")
}
