package org.fedlens.sdk.plan

import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.Slot
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.blob.TensorSpec

/** The role of a program in local plans. */
internal enum class ProgramKind {
    TRAIN,
    DERIVE,
    PREDICT,

    /** `embed`, `view` and `extract`, which plans do not name. */
    OTHER,
}

/** What a program makes, and the schema of a value, that is no table: every exchangeable tensor. */
internal const val WEIGHTS = "weights"

/** The tensor of a reference that is bound to the client's number of photos of each class. */
internal const val LABEL_COUNTS = "label_counts"

/** The role of a program, by its outputs. */
internal val Program.kind: ProgramKind
    get() {
        if (makes.isNotEmpty()) return ProgramKind.DERIVE
        val kinds = outputsList.mapTo(HashSet()) { it.kind }
        return when {
            SlotKind.SLOT_KIND_WEIGHT in kinds -> ProgramKind.TRAIN
            kinds == setOf(SlotKind.SLOT_KIND_LOGITS) -> ProgramKind.PREDICT
            else -> ProgramKind.OTHER
        }
    }

/** The slot of the program's rows; null: it takes none. */
internal val Program.input: Slot? get() = inputsList.firstOrNull { it.kind == SlotKind.SLOT_KIND_INPUT }

/** The rows of one run; 0: the program takes none. */
internal val Program.batch: Int get() = input?.shapeList?.firstOrNull()?.toInt() ?: 0

/** True if the program gives a result for each row, over public rows. */
internal val Program.makesRows: Boolean
    get() = batch != 0 && outputsList.any { it.kind == SlotKind.SLOT_KIND_RESULT }

/** The program's inputs that are tensors of references, by name of the reference. */
internal val Program.references: Map<String, List<Slot>>
    get() = inputsList.filter { it.kind in OF_REFERENCES }.groupBy { it.name.substringBefore('/') }

/** The name of the tensor in the slot of a reference. */
internal val Slot.tensor: String get() = name.substringAfter('/', "")

/** The tensor that a slot takes or gives; [rows] replaces the first dimension. */
internal fun Slot.spec(
    name: String,
    rows: Long? = null,
): TensorSpec = TensorSpec(name, dtype, if (rows == null) shapeList else listOf(rows) + shapeList.drop(1))

/** True if the program trains on augmented views of photos instead of rows as `predict` takes them. */
internal fun Program.takesViews(manifest: Manifest): Boolean {
    val plain = Manifests.program(manifest, "predict").input ?: return false
    return (input ?: return false).shapeCount > plain.shapeCount
}

private val OF_REFERENCES = setOf(SlotKind.SLOT_KIND_REFERENCE, SlotKind.SLOT_KIND_TARGET)
