package barrier

import (
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Members cannot be asked to leave, and whoever tries is told so.
func TestMembersCannotBeAskedToLeave(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t).NewClient(t).NewDoubleBarrier("d", 1)
	lease, err := b.Enter(bg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.RequestRelease(bg)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	select {
	case <-lease.ReleaseRequested():
		t.Error("a member was asked")
	default:
	}
	locktest.MustUnlock(t, lease)
}
