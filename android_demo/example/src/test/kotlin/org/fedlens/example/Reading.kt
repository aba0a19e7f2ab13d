package org.fedlens.example

import org.fedlens.proto.v1.CheckInRequest
import org.fedlens.proto.v1.CheckInResponse
import org.fedlens.proto.v1.EnrolRequest
import org.fedlens.proto.v1.UpdateHeader
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Wire
import org.fedlens.sdk.toHex
import java.io.File

/**
 * Reads messages and a bundle of the folder of test vectors, writes each again and prints what it wrote: what must be
 * the same before and after code is shrunk. Messages find their fields by reflection, so that a lost rule shows here.
 */
public fun main(arguments: Array<String>) {
    val folder = File(arguments.single())
    val parsers =
        mapOf(
            "enrol-request" to EnrolRequest.parser(),
            "check-in-request" to CheckInRequest.parser(),
            "check-in-response-assignment" to CheckInResponse.parser(),
            "update-header" to UpdateHeader.parser(),
        )
    for ((name, parser) in parsers) {
        println("$name ${Wire.decode(parser, File(folder, "messages/$name.bin").readBytes()).toByteArray().toHex()}")
    }
    val response = CheckInResponse.parseFrom(File(folder, "messages/check-in-response-assignment.bin").readBytes())
    val assignment = response.assignment
    // Messages inside others, which reflection alone makes.
    println(assignment.localPlan.instructionsList.map { "${it.kindCase}" } + assignment.setsList.map { it.name })
    val bundle = Bundle.open(File(folder, "bundle"))
    println(bundle.manifest.programsList.map { it.name to it.inputsList.map { slot -> slot.kind } })
    println(bundle.manifest.toByteArray().toHex())
    println(bundle.initial().digest.toHex())
}
