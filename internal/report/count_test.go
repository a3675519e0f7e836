package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	assert.Equal(t, []string{"0 files", "1 file", "2 files"}, []string{Count(0, "file"), Count(1, "file"), Count(int64(2), "file")})
}
