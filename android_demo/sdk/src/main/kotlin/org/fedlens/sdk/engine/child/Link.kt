package org.fedlens.sdk.engine.child

import android.os.IBinder
import android.os.Parcel
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.blob.TensorSpec
import org.fedlens.sdk.engine.ProgramForm

/**
 * The calls between the app and the process that runs programs. A reply is a status and a text that only failures have:
 * nothing in it has a shape, a type or a place, so that there is little to misread.
 */
internal object Link {
    /** Open a descriptor of a file in memory by its path, as a runtime does with programs. */
    const val PROBE = IBinder.FIRST_CALL_TRANSACTION

    /** Load a program: its number and form, the descriptor of its file, and shared memory for its tensors. */
    const val LOAD = PROBE + 1

    /** Run the program of this number on what is in its memory. */
    const val RUN = PROBE + 2

    /** Longest text of a reply, in characters. */
    const val MOST_TEXT = 2_000

    /**
     * What became of a call.
     *
     * @property code As in a reply. None is 0, which is read where nothing was written.
     */
    enum class Status(
        val code: Int,
    ) {
        DONE(1),
        FAILED(2),
        RUNTIME_MISSING(3),
    }

    fun write(
        parcel: Parcel,
        form: ProgramForm,
    ) {
        parcel.writeString(form.name)
        for (specs in listOf(form.inputs, form.outputs)) {
            parcel.writeInt(specs.size)
            for (spec in specs) {
                parcel.writeString(spec.name)
                parcel.writeInt(spec.dtype.number)
                parcel.writeLongArray(spec.shape.toLongArray())
            }
        }
        parcel.writeIntArray(form.replaced.toIntArray())
    }

    /** What [write] has written. Only the app's own messages are read so, never those of a program's process. */
    fun read(parcel: Parcel): ProgramForm {
        val name = checkNotNull(parcel.readString())
        val (inputs, outputs) =
            List(2) {
                List(parcel.readInt()) {
                    val tensor = checkNotNull(parcel.readString())
                    val dtype = checkNotNull(Dtype.forNumber(parcel.readInt()))
                    TensorSpec(tensor, dtype, checkNotNull(parcel.createLongArray()).toList())
                }
            }
        return ProgramForm(name, inputs, outputs, checkNotNull(parcel.createIntArray()).toList())
    }
}
