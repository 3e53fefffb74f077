package raftlog

import "github.com/stelelog/stele/storage"

// The ids and states that raftlog shares with the storage below it, under
// names that packages above can use without importing storage.
type (
	NodeID      = storage.NodeID
	GroupID     = storage.GroupID
	ReplicaID   = storage.ReplicaID
	Term        = storage.Term
	Index       = storage.Index
	Offset      = storage.Offset
	Incarnation = storage.Incarnation
	Nonce       = storage.Nonce
	ClusterID   = storage.ClusterID
	ConfState   = storage.ConfState
	Begin       = storage.Begin
	Verdict     = storage.Verdict
	EntryKind   = storage.EntryKind

	ReplicaState = storage.ReplicaState
)

// MetadataGroup is the group of the metadata log.
const MetadataGroup = storage.MetadataGroup

// What applying decided about an entry.
const (
	VerdictData      = storage.VerdictData
	VerdictDuplicate = storage.VerdictDuplicate
	VerdictEmpty     = storage.VerdictEmpty
	VerdictConfig    = storage.VerdictConfig
	VerdictRefused   = storage.VerdictRefused
	VerdictControl   = storage.VerdictControl
)
