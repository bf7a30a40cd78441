// Package ends has the calls of other packages that never return, and those with a similar name that do.
package ends

import (
	"context"
	"errors"
	"log"
	"os"
	"runtime"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockvet/testdata/ends/assert"
	"github.com/go-rlock/rlock/rlockvet/testdata/ends/ginkgo"
	"github.com/go-rlock/rlock/rlockvet/testdata/ends/klog"
	"github.com/go-rlock/rlock/rlockvet/testdata/ends/require"
	"github.com/go-rlock/rlock/rlockvet/testdata/ends/zerolog"
)

// tester is what helpers of tests take.
type tester interface {
	FailNow()
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Fail()
}

// scanner skips, and returns.
type scanner interface{ Skip(args ...any) }

func byStandardLibrary(ctx context.Context, l *rlock.Lock) {
	if _, err := l.TryLock(ctx); err == nil {
		log.Fatalln("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		log.Panicf("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		os.Exit(1)
	}
	if _, err := l.TryLock(ctx); err == nil {
		runtime.Goexit()
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		log.Println("free")
	}
}

func byTests(ctx context.Context, l *rlock.Lock, t *testing.T, b testing.TB, own tester, s scanner) {
	if _, err := l.TryLock(ctx); err == nil {
		t.Fatal("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		b.FailNow()
	}
	if _, err := l.TryLock(ctx); err == nil {
		own.Fatalf("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		t.Skipf("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		b.SkipNow()
	}
	if _, err := l.TryLock(ctx); err == nil {
		own.Skip("free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		t.Fail()
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		own.Fail()
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		b.Skipped()
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		s.Skip("free")
	}
}

func byTestify(ctx context.Context, l *rlock.Lock, t *testing.T, r *require.Assertions) {
	if _, err := l.TryLock(ctx); !errors.Is(err, rlock.ErrNotAcquired) {
		require.Fail(t, "free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		require.Failf(t, "free", "%d", 1)
	}
	if _, err := l.TryLock(ctx); err == nil {
		require.FailNow(t, "free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		assert.FailNow(t, "free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		r.Fail("free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		assert.Fail(t, "free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		require.True(t, l.Name() == "")
	}
}

func byLoggers(ctx context.Context, l *rlock.Lock, z *zerolog.Logger) {
	if _, err := l.TryLock(ctx); err == nil {
		klog.Fatalf("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		klog.FatalDepth(1, "free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		klog.ExitDepth(1, "free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		z.Fatal().Err(err).Msg("free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		klog.Errorf("free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		z.Error().Err(err).Msg("free")
	}
}

func byGinkgo(ctx context.Context, l *rlock.Lock) {
	if _, err := l.TryLock(ctx); err == nil {
		ginkgo.Fail("free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		ginkgo.Skip("free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		ginkgo.By("free")
	}
}

// A path that ends so has no end of the function.
func afterTheLock(ctx context.Context, l *rlock.Lock, t *testing.T) {
	lease, err := l.Lock(ctx)
	if err != nil {
		require.Fail(t, err.Error())
	}
	if lease.Token() == 0 {
		require.Fail(t, "no token")
	}
	_ = lease.Unlock(ctx)
}

func afterTheLockInAnotherWay(ctx context.Context, l *rlock.Lock, t *testing.T) {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	require.NoError(t, err)
	if lease.Token() == 0 {
		assert.Fail(t, "no token")
		return
	}
	_ = lease.Unlock(ctx)
}

// These end only after an error, so the lock stays.
func onlyAfterAnError(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	klog.FatalIf(err)
	log.Print(lease.Name())
}

func panicsOnlyOnError(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	klog.PanicOnError(err)
	log.Print(lease.Name())
}

// A test that goes on only if the acquire has failed.
func required(ctx context.Context, l *rlock.Lock, t *testing.T, r *require.Assertions) {
	_, err := l.TryLock(ctx)
	require.Error(t, err)
	_, err = l.TryLock(ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	_, err = l.TryLock(ctx)
	require.EqualError(t, err, "free")
	_, err = l.TryLock(ctx)
	r.ErrorIs(err, rlock.ErrNotAcquired)
}

func notRequired(ctx context.Context, l *rlock.Lock, t *testing.T, other error) {
	_, err := l.TryLock(ctx) // want `lease of TryLock is dropped`
	require.NoError(t, err)
	_, err = l.TryLock(ctx) // want `lease of TryLock is dropped`
	require.NotErrorIs(t, err, rlock.ErrNotAcquired)
	_, err = l.TryLock(ctx) // want `lease of TryLock is dropped`
	require.Error(t, other)
	_, err = l.TryLock(ctx) // want `lease of TryLock is dropped`
	assert.Error(t, err)
	_, err = l.TryLock(ctx) // want `lease of TryLock is dropped`
	require.ErrorIs(t, err, nil)
}
