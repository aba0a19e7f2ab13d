package org.fedlens.sdk.engine.child

import android.content.Context
import android.os.Build
import android.os.ParcelFileDescriptor
import android.os.Parcelable
import android.os.SharedMemory
import android.system.ErrnoException
import android.util.Log
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.NewerAndroid
import org.fedlens.sdk.engine.LoadedProgram
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ProgramMemory
import org.fedlens.sdk.engine.ProgramRuntime
import org.fedlens.sdk.engine.unreadable
import org.fedlens.sdk.engine.unusable
import java.io.File
import java.io.IOException
import java.util.concurrent.TimeUnit

/**
 * A runtime whose programs run in another process than the app's, and whose crashes end only that one.
 *
 * It is an isolated process if the runtime can load programs there. ExecuTorch opens files by path, which isolated
 * processes may not do by Android's own rules, not even through `/proc/self/fd`; a fresh one is asked once. Otherwise,
 * it is a process that has the rights of the app.
 *
 * @property version As in [ProgramRuntime.version].
 * @param mustBeIsolated Whether to run nothing rather than in a process with the app's rights.
 * @param forPredictions Whether it runs predictions, whose process is another than that of a training: neither waits
 *     for the other, nor ends with it, and each has the programs of one bundle only.
 * @param limitMs As in [ProgramProcess].
 */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal class SeparateRuntime(
    private val context: Context,
    override val version: String,
    private val mustBeIsolated: Boolean,
    forPredictions: Boolean = false,
    private val limitMs: Long = TimeUnit.MINUTES.toMillis(1),
) : ProgramRuntime {
    private val service =
        if (forPredictions) PredictionService::class.java else ProgramService::class.java
    private val isolatedService =
        if (forPredictions) IsolatedPredictionService::class.java else IsolatedProgramService::class.java

    // Null until a process was asked that had run nothing: later ones may lie.
    private var canBeIsolated: Boolean? = null
    private var process: ProgramProcess? = null
    private var loaded = 0
    private var lastNumber = 0

    override val isInProcess: Boolean get() = false

    override fun load(
        form: ProgramForm,
        file: File,
    ): LoadedProgram = Program(form, file)

    /** The process of the programs that are loaded now. */
    @Synchronized
    private fun process(): ProgramProcess {
        process?.let { if (it.isAlive) return it else it.end() }
        return start().also { process = it }
    }

    private fun start(): ProgramProcess {
        if (canBeIsolated != false) {
            try {
                return isolated()
            } catch (error: EngineException) {
                val why = "programs cannot run in an isolated process here: ${error.message}"
                if (mustBeIsolated || canBeIsolated == true) throw EngineException(Reason.RUNTIME_MISSING, why, error)
                canBeIsolated = false
                Log.w("FedLens", "$why; so they run with the rights of the app")
            }
        }
        return ProgramProcess(context, service, limitMs)
    }

    private fun isolated(): ProgramProcess {
        val process = ProgramProcess(context, isolatedService, limitMs)
        if (canBeIsolated == true) return process
        try {
            process.call(Link.PROBE, "probe") {}
        } catch (error: EngineException) {
            process.end()
            throw error
        }
        canBeIsolated = true
        return process
    }

    /** End the process after its last program: the next bundle gets one that has run nothing. */
    @Synchronized
    private fun leave() {
        if (--loaded > 0) return
        process?.end()
        process = null
    }

    @Synchronized
    private fun enter(): Int {
        loaded++
        return ++lastNumber
    }

    @NewerAndroid(LEAST_ANDROID)
    private inner class Program(
        private val form: ProgramForm,
        private val file: File,
    ) : LoadedProgram {
        private val shared = orUnusable { SharedMemory.create("fedlens", ProgramMemory.bytes(form)) }
        private val memory = ProgramMemory(form, orUnusable { shared.mapReadWrite() })
        override val arguments = memory.arguments
        override val results = memory.results
        private val number = enter()
        private var where: ProgramProcess? = null
        private var isOpen = true

        init {
            try {
                anew { ready() }
            } catch (error: Throwable) {
                close()
                throw error
            }
        }

        override fun run() {
            check(isOpen) { "program '${form.name}' is closed" }
            anew { ready().call(Link.RUN, form.name) { it.writeInt(number) } }
        }

        /** Run [work], and again in a new process if another program has ended this one: the arguments are here. */
        private fun anew(work: () -> Unit) {
            while (true) {
                try {
                    return work()
                } catch (_: LostToAnother) {
                    continue
                }
            }
        }

        override fun close() {
            if (!isOpen) return
            isOpen = false
            shared.close()
            leave()
        }

        private fun <T> orUnusable(grab: () -> T): T =
            try {
                grab()
            } catch (error: ErrnoException) {
                unusable("program '${form.name}' takes more memory than there is", error)
            }

        /** The process with this program loaded. Android may have ended an idle one, which is no fault of a program. */
        private fun ready(): ProgramProcess {
            val process = process()
            if (process === where) return process
            val opened =
                try {
                    ParcelFileDescriptor.open(file, ParcelFileDescriptor.MODE_READ_ONLY)
                } catch (error: IOException) {
                    throw unreadable(form.name, error)
                }
            opened.use {
                process.call(Link.LOAD, form.name) { request ->
                    request.writeInt(number)
                    Link.write(request, form)
                    // Closed here as soon as the message has it.
                    opened.writeToParcel(request, Parcelable.PARCELABLE_WRITE_RETURN_VALUE)
                    shared.writeToParcel(request, 0)
                }
            }
            where = process
            return process
        }
    }

    companion object {
        /** The first API level with everything that this package calls. */
        const val LEAST_ANDROID = Build.VERSION_CODES.R
    }
}
