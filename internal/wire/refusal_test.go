package wire

import (
	"testing"
	"time"
)

type redisError string

func (r redisError) Error() string { return string(r) }
func (redisError) RedisError()     {}

func TestTextOfARefusal(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{Failure(redisError("READONLY no writes. script: 0123456789012345678901234567890123456789, on @user_script:12.")), "Redis refused: READONLY no writes."},
		{Failure(redisError("READONLY no writes. stack traceback:\n\t[G]: in function 'call'\n\t[G]: ?")), "Redis refused: READONLY no writes."},
		{NoAnswer(0, redisError("LOADING it")), "Redis refused: LOADING it"},
		{NoAnswer(time.Second, redisError("LOADING it")), "Redis refused within 1s: LOADING it"},
		{NoAnswer(0, nil), "no answer from Redis"},
	} {
		if text := c.err.Error(); text != c.want {
			t.Errorf("%q, not %q", text, c.want)
		}
	}
}
